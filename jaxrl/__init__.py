"""Reinforcement learning in JAX: pure functions under one scan-based training loop."""

__version__ = "0.2.0"
