"""Ranks of fitness values. NaN is worse than any number."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array


def order_by_fitness(fitness: Array) -> Array:
    """Return the indices [P] from the best to the worst; equals keep their order."""
    return jnp.argsort(-jnp.where(jnp.isnan(fitness), -jnp.inf, fitness))


def ranks(fitness: Array) -> Array:
    """Return the rank of each, int32 [P]: 0 for the best; equals keep their order."""
    index = jnp.arange(fitness.shape[0])
    return jnp.zeros_like(index).at[order_by_fitness(fitness)].set(index)
