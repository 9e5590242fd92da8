"""CMA-ES, its separable form, and its step-size control alone.

Equations and constants of Hansen (2016), "The CMA evolution strategy: a tutorial"
(arXiv:1604.00772), with positive recombination weights only (not its active variant). Its section
0.2 has several ways to draw from N(m, C), with the same distribution; this one is m + C^(1/2) z
with the symmetric root B D B^T, and not m + B D z. The root is a continuous function of C;
eigenvectors are not: for equal eigenvalues, such as those of the initial C, any basis is valid, so
a rounding error in C could rotate the samples by any angle, and a seed would search differently in
a vmapped population than alone. `sep_cma` keeps the covariance's diagonal and learns it (n + 2) / 3
times as fast (Ros and Hansen, 2008, "A simple modification in CMA-ES achieving linear time and
space complexity"); `csa` keeps the covariance at the identity.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.evolution.shared.eigen import assemble, eigh
from jaxrl.algorithms.evolution.shared.ranking import ranks
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Tree, struct

LARGEST = 256  # dimensions of a full covariance: its eigenvectors are computed in each generation


@struct
class State:
    """Search distribution and evolution paths."""

    mean: Array  # [D]
    sigma: Array
    path_sigma: Array  # [D]: p_sigma, of the step size
    path_c: Array  # [D]: p_c, of the covariance
    covariance: Tree  # (), [D] or [D, D]
    root: Array  # C^(1/2), the symmetric one: [D, D], or the diagonal [D]
    inverse_root: Array  # C^(-1/2), likewise
    generation: Array  # int32


@dataclasses.dataclass(frozen=True)
class Constants:
    """Constants of table 1 of the tutorial."""

    weights: np.ndarray  # [P], by rank; 0 for the worse half
    mu_eff: float
    c_sigma: float
    d_sigma: float
    c_c: float
    c_1: float
    c_mu: float
    chi: float  # the expected norm of a standard normal vector [D]


def constants(dimension: int, population: int, separable: bool = False) -> Constants:
    """Return the default constants for `dimension` (n) and `population` (lambda)."""
    n, parents = dimension, population // 2
    raw = math.log((population + 1) / 2) - np.log(np.arange(1, population + 1))
    raw = np.where(np.arange(population) < parents, raw, 0.0)
    weights = raw / raw.sum()
    mu_eff = float(1 / np.square(weights).sum())
    c_sigma = (mu_eff + 2) / (n + mu_eff + 5)
    c_1 = 2 / ((n + 1.3) ** 2 + mu_eff)
    c_mu = 2 * (0.25 + mu_eff + 1 / mu_eff - 2) / ((n + 2) ** 2 + mu_eff)
    if separable:
        c_1, c_mu = min(1.0, c_1 * (n + 2) / 3), c_mu * (n + 2) / 3
    return Constants(
        weights,
        mu_eff,
        c_sigma,
        1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_sigma,
        (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n),
        c_1,
        min(1 - c_1, c_mu),
        math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2)),
    )


def genotypes(state: State, normal: Array) -> Array:
    """Return samples [P, D] of the distribution, from standard normal ones [P, D]."""
    return state.mean + state.sigma * _times(state.root, normal)


def roots(covariance: Array) -> tuple[Array, Array]:
    """Return the symmetric C^(1/2) and C^(-1/2) of a `covariance` C, [D, D] or its diagonal [D]."""
    values, vectors = eigh(covariance) if covariance.ndim == 2 else (covariance, None)
    scale = jnp.sqrt(jnp.maximum(values, 1e-14))  # rounding may make an eigenvalue negative
    if vectors is None:
        return scale, 1 / scale
    return assemble(scale, vectors), assemble(1 / scale, vectors)


def _times(matrix: Array, vectors: Array) -> Array:
    """Multiply a symmetric `matrix`, [D, D] or its diagonal [D], by each of `vectors` [..., D]."""
    return vectors @ matrix if matrix.ndim == 2 else matrix * vectors


def functions(name: str, dimension: int, population: int) -> tuple[Any, Any, Any]:
    """Return init, ask and tell of `csa`, `sep_cma` or `cma`; see `strategies.Strategy`. Raises
    `UserError` for a population below 4 and a full covariance of more than `LARGEST` dimensions."""
    if population < 4:
        raise UserError(f"population is {population}; {name} needs at least 4.")
    if name == "cma" and dimension > LARGEST:
        raise UserError(f"cma supports at most {LARGEST} weights, got {dimension}; use sep_cma.")
    c = constants(dimension, population, name == "sep_cma")
    table = jnp.asarray(c.weights, jnp.float32)
    full, adapts = name == "cma", name != "csa"

    def init(mean, hyper):
        ones, zeros = jnp.ones(dimension), jnp.zeros(dimension)
        covariance = jnp.eye(dimension) if full else ones if adapts else ()
        root = jnp.eye(dimension) if full else ones
        sigma = jnp.asarray(hyper["sigma"])
        return State(mean, sigma, zeros, zeros, covariance, root, root, jnp.int32(0))

    def ask(state, key):
        return genotypes(state, jax.random.normal(key, (population, dimension)))

    def tell(state, genotypes, fitness, hyper):
        weights = table[ranks(fitness)]
        y = (genotypes - state.mean) / state.sigma
        step = weights @ y
        generation = state.generation + 1

        keep = 1 - c.c_sigma
        path_sigma = keep * state.path_sigma + math.sqrt(
            c.c_sigma * (2 - c.c_sigma) * c.mu_eff
        ) * _times(state.inverse_root, step)  # equation 43
        length = jnp.sqrt(jnp.square(path_sigma).sum())
        sigma = state.sigma * jnp.exp(c.c_sigma / c.d_sigma * (length / c.chi - 1))  # 44
        mean = state.mean + state.sigma * step  # 42
        if not adapts:
            return dataclasses.replace(
                state, mean=mean, sigma=sigma, path_sigma=path_sigma, generation=generation
            )

        unbiased = jnp.sqrt(1 - keep ** (2 * generation.astype(jnp.float32)))
        steady = length / unbiased < (1.4 + 2 / (dimension + 1)) * c.chi  # h_sigma
        path_c = (1 - c.c_c) * state.path_c + steady * math.sqrt(
            c.c_c * (2 - c.c_c) * c.mu_eff
        ) * step  # 45
        outer = (lambda a, b: a[:, None] * b) if full else (lambda a, b: a * b)
        rank_mu = (weights * y.T) @ y if full else weights @ jnp.square(y)
        stall = (1 - steady) * c.c_c * (2 - c.c_c)
        covariance = (
            (1 + c.c_1 * stall - c.c_1 - c.c_mu) * state.covariance
            + c.c_1 * outer(path_c, path_c)
            + c.c_mu * rank_mu
        )  # 47
        root, inverse = roots(covariance)
        return State(mean, sigma, path_sigma, path_c, covariance, root, inverse, generation)

    return init, ask, tell
