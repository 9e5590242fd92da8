"""Classic control: the dynamics, rewards and time limits of Gymnasium's environments."""
