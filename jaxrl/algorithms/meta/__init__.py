"""Meta-learning: whole training runs inside a step."""
