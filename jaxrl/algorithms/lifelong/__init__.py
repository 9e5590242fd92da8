"""A life of tasks, and what helps an agent through it."""
