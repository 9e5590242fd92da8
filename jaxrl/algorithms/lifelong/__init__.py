"""Lifelong learning: sequences of tasks, and components against forgetting."""
