"""Bandits: environments without a state that the action changes."""
