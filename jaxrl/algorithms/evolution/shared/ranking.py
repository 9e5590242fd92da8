"""Fitness as ranks. NaN counts as worse than anything."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array


def ordered(fitness: Array) -> Array:
    """Indices [P] from the best to the worst; equals in the order in which they stand."""
    return jnp.argsort(-jnp.where(jnp.isnan(fitness), -jnp.inf, fitness))


def places(fitness: Array) -> Array:
    """The place of each, int32 [P]: 0 for the best; equals in the order in which they stand."""
    index = jnp.arange(fitness.shape[0])
    return jnp.zeros_like(index).at[ordered(fitness)].set(index)
