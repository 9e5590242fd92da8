"""Algorithms that learn to reach goals, from data without rewards."""
