"""Ground truth on finite environments: dynamic programming, occupancies, exact policy gradients."""
