"""Losses of state values: one per element, the caller averages."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array


def squared_error(value: Array, target: Array) -> Array:
    """(value - target)^2 / 2. Shapes broadcast. No gradient flows into `target`."""
    return 0.5 * jnp.square(value - jax.lax.stop_gradient(target))


def clipped_squared_error(
    value: Array, old_value: Array, target: Array, clip: Array | float
) -> Array:
    """The larger of the squared errors of `value` and of `value` kept within `clip` of
    `old_value`; the plain one if `clip` is infinite (Engstrom et al., 2020, section 3, after the
    PPO code of Schulman et al.). No gradient flows into `old_value` and `target`."""
    old_value = jax.lax.stop_gradient(old_value)
    near = jnp.clip(value, old_value - clip, old_value + clip)
    return jnp.maximum(squared_error(value, target), squared_error(near, target))


def explained_variance(value: Array, target: Array) -> Array:
    """1 - Var(target - value) / Var(target) over all axes, a scalar; 0 if `target` is constant up
    to rounding."""
    variance = jnp.var(target)
    varies = variance > 1e-10 * jnp.square(target).mean()
    return jnp.where(varies, 1 - jnp.var(target - value) / jnp.where(varies, variance, 1.0), 0.0)
