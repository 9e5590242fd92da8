"""What learns from a dataset, alone or before it goes on in an environment."""
