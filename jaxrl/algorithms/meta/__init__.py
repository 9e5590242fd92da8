"""Learning to learn: whole training runs inside a step."""
