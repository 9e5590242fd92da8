"""Exponential natural evolution strategies over a few dimensions.

Glasmachers et al. (2010); with the defaults of Wierstra et al. (2014, arXiv:1106.4487), algorithm 5
and table 1. The distribution is N(mean, (sigma B)(sigma B)^T).
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.evolution.shared.eigen import assemble, eigh
from jaxrl.algorithms.evolution.shared.ranking import ranks
from jaxrl.core.types import Array, struct


@struct
class State:
    """Search distribution."""

    mean: Array  # [D]
    sigma: Array
    shape: Array  # [D, D]: B, of determinant 1


def init(mean: Array, sigma: Array) -> State:
    """Return the isotropic distribution N(mean, sigma^2 I)."""
    return State(mean, sigma, jnp.eye(mean.shape[0]))


def utilities(population: int) -> np.ndarray:
    """Return the weights by rank, [P], which sum to 0."""
    raw = np.maximum(0.0, math.log(population / 2 + 1) - np.log(np.arange(1, population + 1)))
    return raw / raw.sum() - 1 / population


def genotypes(state: State, normal: Array) -> Array:
    """Return samples [P, D] of the distribution, from standard normal ones [P, D]."""
    return state.mean + state.sigma * normal @ state.shape.T


def tell(state: State, normal: Array, fitness: Array) -> State:
    """Take natural gradient steps in mean, size and shape. `fitness` [P], to be maximized, is that
    of the `genotypes` of `normal` [P, D]."""
    dimension = state.mean.shape[0]
    rate = (9 + 3 * math.log(dimension)) / (5 * dimension * math.sqrt(dimension))
    weights = jnp.asarray(utilities(fitness.shape[0]), jnp.float32)[ranks(fitness)]
    normal = normal.T
    toward = normal @ weights
    both = (weights * normal) @ normal.T - weights.sum() * jnp.eye(dimension)
    size = jnp.trace(both) / dimension
    values, vectors = eigh(both - size * jnp.eye(dimension))
    return State(
        state.mean + state.sigma * state.shape @ toward,
        state.sigma * jnp.exp(rate / 2 * size),
        state.shape @ assemble(jnp.exp(rate / 2 * values), vectors),
    )
