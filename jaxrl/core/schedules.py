"""Schedules of a hyperparameter over environment steps: branch-free, of traced arguments.

(optax's linear, cosine and exponential schedules test their arguments in Python, so they cannot
be swept by vmap.)
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array


def progress(env_steps: Array, duration: Array) -> Array:
    """The fraction of `duration` that has passed, in [0, 1]; 0 throughout if it is infinite."""
    return jnp.clip(env_steps / duration, 0.0, 1.0)


def linear(start: Array, end: Array, fraction: Array) -> Array:
    """From `start` to `end` in a straight line."""
    return start + fraction * (end - start)


def cosine(start: Array, end: Array, fraction: Array) -> Array:
    """From `start` to `end` along half a cosine (Loshchilov & Hutter, 2017, eq. 5)."""
    return end + 0.5 * (start - end) * (1 + jnp.cos(jnp.pi * fraction))


def exponential(start: Array, end: Array, fraction: Array) -> Array:
    """From `start` to `end` at a constant rate of decay; both must be positive."""
    return start * (end / start) ** fraction


SCHEDULES = {"linear": linear, "cosine": cosine, "exponential": exponential}
