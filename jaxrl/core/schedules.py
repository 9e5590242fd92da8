"""Schedules of a hyperparameter over environment steps, without branches, for traced arguments.

(The linear, cosine and exponential schedules of optax test their arguments in Python, so `vmap`
cannot sweep them.)
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array


def progress(env_steps: Array, duration: Array) -> Array:
    """Return the fraction of `duration` that has passed, in [0, 1]; always 0 if it is infinite."""
    return jnp.clip(env_steps / duration, 0.0, 1.0)


def linear(start: Array, end: Array, fraction: Array) -> Array:
    """Go from `start` to `end` in a straight line."""
    return start + fraction * (end - start)


def cosine(start: Array, end: Array, fraction: Array) -> Array:
    """Go from `start` to `end` along half a cosine (Loshchilov & Hutter, 2017, eq. 5)."""
    return end + 0.5 * (start - end) * (1 + jnp.cos(jnp.pi * fraction))


def exponential(start: Array, end: Array, fraction: Array) -> Array:
    """Go from `start` to `end` at a constant rate of decay; both must be positive."""
    return start * (end / start) ** fraction


SCHEDULES = {"linear": linear, "cosine": cosine, "exponential": exponential}
