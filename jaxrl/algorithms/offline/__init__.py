"""Algorithms that learn from a dataset, alone or before they continue in an environment."""
