"""Evolutionary search: ranks, gradients from perturbations, and archives of elites."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import _full_mask

__all__ = [
    "annealed_threshold",
    "antithetic_es_gradient",
    "archive_improvement",
    "centered_ranks",
    "es_gradient",
]


@check_arguments
def centered_ranks(fitness: Array, mask: Array | None = None) -> Array:
    """Fitness by rank, from -0.5 (worst) to 0.5 (best), insensitive to outliers and scale.

    rank / (N - 1) - 1/2; ties share their mean rank; NaN ranks worst

    Args:
      fitness: [..., N], the population last.
      mask: [..., N], true where a member counts; None: everywhere.
    Returns: [..., N]; 0 where the mask is false, where all are equal, and for a single member.
    Gradients: none.
    Source: Salimans et al., 2017, "Evolution strategies as a scalable alternative to
      reinforcement learning", section 2 (fitness shaping; the handling of ties is our choice).
    Example: `losses.centered_ranks(fitness)`
    """
    fitness = jax.lax.stop_gradient(fitness)
    allowed = _full_mask(fitness, mask)
    fitness = jnp.where(jnp.isnan(fitness), -jnp.inf, fitness)

    @functools.partial(jnp.vectorize, signature="(n),(n)->(n)")
    def ranks(fitness, allowed):
        # Members that do not count come last, where no other is compared with them.
        ascending, number = jnp.sort(jnp.where(allowed, fitness, jnp.inf)), allowed.sum()
        worse = jnp.searchsorted(ascending, fitness, side="left")
        no_better = jnp.minimum(jnp.searchsorted(ascending, fitness, side="right"), number)
        balance = (worse + no_better - number).astype(fitness.dtype)  # worse minus better members
        return 0.5 * balance / jnp.maximum(number - 1, 1).astype(fitness.dtype)

    return jnp.where(allowed, ranks(fitness, allowed), 0)


@check_arguments
def es_gradient(fitness: Array, noise: Array, scale: Array | float) -> Array:
    """Gradient of the expected fitness of perturbed parameters, estimated from samples.

    1 / (N scale) sum_n fitness_n noise_n

    Args:
      fitness: [..., N], of theta + scale * noise_n, usually as `centered_ranks`.
      noise: [..., N, P], standard normal.
      scale: the perturbation's deviation, broadcasts to [..., 1].
    Returns: [..., P], the direction of increasing fitness.
    Gradients: none.
    Source: Salimans et al., 2017, "Evolution strategies as a scalable alternative to
      reinforcement learning", algorithm 1.
    Example: `losses.es_gradient(fitness, noise, scale)`
    """
    total = (fitness[..., None] * noise).mean(-2) / scale
    return jax.lax.stop_gradient(total)


@check_arguments
def antithetic_es_gradient(
    fitness: Array, mirrored_fitness: Array, noise: Array, scale: Array | float
) -> Array:
    """Evolution-strategies gradient from mirrored perturbations, which has less variance.

    1 / (2 N scale) sum_n (F(theta + scale noise_n) - F(theta - scale noise_n)) noise_n

    Args:
      fitness, mirrored_fitness: [..., N], of theta + scale * noise_n and of theta - scale *
        noise_n (if as `centered_ranks`, rank both together). Even terms of the fitness cancel.
      noise: [..., N, P], standard normal.
      scale: the perturbation's deviation, broadcasts to [..., 1].
    Returns: [..., P], the direction of increasing fitness.
    Gradients: none.
    Source: Salimans et al., 2017, "Evolution strategies as a scalable alternative to
      reinforcement learning", section 2 (mirrored sampling).
    Example: `losses.antithetic_es_gradient(fitness, mirrored_fitness, noise, scale)`
    """
    return es_gradient(0.5 * (fitness - mirrored_fitness), noise, scale)


@check_arguments
def archive_improvement(
    objective: Array, threshold: Array, occupied: Array, minimum: Array | float = 0.0
) -> Array:
    """Improvement of an archive of elites by a solution (MAP-Elites, PPGA), the emitter's reward.

    objective - threshold where the cell is occupied, else objective - minimum

    Args:
      objective: [...], the solution's.
      threshold: [...], its cell's: the elite's objective (MAP-Elites) or the annealed one.
      occupied: [...], true where the cell has an elite.
      minimum: the objective's minimum, the threshold of an empty cell, broadcasts to [...].
    Returns: [...]; the solution enters the archive where this is positive.
    Gradients: flow only into `objective`.
    Source: Fontaine and Nikolaidis, 2023, "Covariance matrix adaptation MAP-annealing", section 4;
      Batra et al., 2024, "Proximal policy gradient arborescence for quality diversity
      reinforcement learning".
    Example: `losses.archive_improvement(objective, threshold, occupied)`
    """
    threshold, minimum = jax.lax.stop_gradient((threshold, minimum))
    return objective - jnp.where(occupied, threshold, minimum)


@check_arguments
def annealed_threshold(threshold: Array, objective: Array, rate: Array | float) -> Array:
    """Update CMA-MAE's threshold of an archive cell, which slowly follows its elites (PPGA).

    threshold + rate * max(0, objective - threshold)

    Args:
      threshold: [...], the cell's, initially the objective's minimum.
      objective: [...], of the solution that falls into the cell.
      rate: in [0, 1], broadcasts to [...]; 1: the best objective so far (MAP-Elites); 0: plain
        optimization.
    Returns: [...].
    Gradients: none.
    Source: Fontaine and Nikolaidis, 2023, "Covariance matrix adaptation MAP-annealing", section 4.
    Example: `losses.annealed_threshold(threshold, objective, rate=0.1)`
    """
    gain = jax.nn.relu(objective - threshold)
    return jax.lax.stop_gradient(threshold + rate * gain)
