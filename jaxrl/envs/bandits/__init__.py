"""Bandits: environments in which actions do not change the state."""
