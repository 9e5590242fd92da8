"""Trained policies as files that act without jaxrl."""
