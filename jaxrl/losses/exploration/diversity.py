"""Diversity of skills, populations and particles."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import euclidean_distance, rbf_kernel
from jaxrl.losses.divergences.entropy_and_kl import categorical_nll
from jaxrl.losses.exploration.information import barber_agakov
from jaxrl.losses.reductions import at_action

__all__ = [
    "gated_diversity",
    "median_bandwidth",
    "population_log_volume",
    "population_volume",
    "skill_reward",
    "svgd",
]


@check_arguments
def skill_reward(logits: Array, skill: Array, prior_logits: Array) -> Array:
    """DIAYN's reward for visiting states that identify the agent's skill.

    log q(skill | s) - log p(skill)

    Args:
      logits: [..., K], the discriminator's, for the state.
      skill: [...], integers, the skill being followed.
      prior_logits: broadcasts to [..., K], of the distribution of skills (zeros: uniform).
    Returns: [...]; its mean is a lower bound on the mutual information of skills and states.
    Gradients: none.
    Source: Eysenbach et al., 2019, "Diversity is all you need: Learning skills without a reward
      function", eq. 3.
    Example: `losses.skill_reward(logits, skill, prior_logits)`
    """
    prior = jnp.broadcast_to(jax.nn.log_softmax(prior_logits), logits.shape)
    log_prob = -categorical_nll(logits, skill)
    return jax.lax.stop_gradient(barber_agakov(log_prob, at_action(prior, skill)))


@check_arguments
def gated_diversity(
    reward: Array,
    diversity: Array,
    episode_return: Array,
    best_return: Array | float,
    tolerance: Array | float,
    weight: Array | float,
) -> Array:
    """SMERL's reward, which adds a diversity bonus only to near-optimal behavior.

    reward + weight * diversity where episode_return >= best_return - tolerance, else reward

    Args:
      reward, diversity: [...], the task's and the skills' (such as `skill_reward`).
      episode_return: [...], of the episode or of the skill.
      best_return, tolerance, weight: R*, epsilon and alpha, broadcast to [...].
    Returns: [...].
    Gradients: none.
    Source: Kumar et al., 2020, "One solution is not all you need: Few-shot extrapolation via
      structured MaxEnt RL".
    Example: `losses.gated_diversity(reward, diversity, episode_return, best_return, tolerance,
      weight)`
    """
    good = episode_return >= best_return - tolerance
    return jax.lax.stop_gradient(jnp.where(good, reward + weight * diversity, reward))


@check_arguments
def median_bandwidth(x: Array) -> Array:
    """Kernel bandwidth by the median heuristic: a point's kernel values sum to about 1.

    median_{n<m} |x_n - x_m| / sqrt(2 log(N + 1))

    Args: x: [..., N, D].
    Returns: [...]; 1 where more than half of the distances are 0, or N < 2.
    Gradients: none.
    Source: Liu and Wang, 2016, "Stein variational gradient descent: A general purpose Bayesian
      inference algorithm", section 5 (with N + 1, as in the published code, and each pair once).
    Example: `losses.median_bandwidth(x)`
    """
    x = jax.lax.stop_gradient(x)
    number = x.shape[-2]
    if number < 2:
        return jnp.ones_like(x[..., 0, 0]) if number else jnp.ones(x.shape[:-2], x.dtype)
    first, second = jnp.triu_indices(number, k=1)
    distance = euclidean_distance(x[..., first, :], x[..., second, :])
    bandwidth = jnp.median(distance, axis=-1) / math.sqrt(2 * math.log(number + 1))
    return jnp.where(bandwidth > 0, bandwidth, 1)


@check_arguments
def svgd(particles: Array, score: Array, bandwidth: Array | float) -> Array:
    """Stein variational gradient (SVGD): particles climb a density and repel each other.

    phi_i = mean_j k(x_j, x_i) score_j + grad_{x_j} k(x_j, x_i), k = rbf_kernel; x_i += step phi_i

    Args:
      particles: [..., N, D], x.
      score: [..., N, D], gradient of the log-density at each particle.
      bandwidth: the kernel's, such as `median_bandwidth(particles)`, broadcasts to [...].
    Returns: [..., N, D], the direction to move in.
    Gradients: none.
    Source: Liu and Wang, 2016, "Stein variational gradient descent: A general purpose Bayesian
      inference algorithm", eq. 8.
    Example: `losses.svgd(particles, score, bandwidth)`
    """
    particles, score, bandwidth = jax.lax.stop_gradient((particles, score, bandwidth))
    particles = particles - particles.mean(-2, keepdims=True)  # for precision only
    kernel = rbf_kernel(particles, particles, bandwidth)
    width = jnp.asarray(bandwidth, particles.dtype)[..., None, None]
    # sum_j k_ij (x_i - x_j) / width^2, without the differences themselves
    near = precise.matmul(kernel, particles)
    repulsion = (kernel.sum(-1, keepdims=True) * particles - near) / jnp.square(width)
    return (precise.matmul(kernel, score) + repulsion) / particles.shape[-2]


def _spectrum(kernel: Array) -> Array:
    """Return eigenvalues in at least single precision; zeros may come out slightly negative."""
    return jnp.linalg.eigvalsh(kernel.astype(jnp.promote_types(kernel.dtype, jnp.float32)))


@check_arguments
def population_volume(kernel: Array) -> Array:
    """DvD's diversity of a population: 0 if two members behave alike, 1 if all are dissimilar.

    det K

    Args: kernel: [..., M, M], similarities of the members' behavior, with a diagonal of 1.
    Returns: [...], to be maximized.
    Gradients: none are stopped; finite even for singular matrices.
    Source: Parker-Holder et al., 2020, "Effective diversity in population based reinforcement
      learning".
    Example: `losses.population_volume(kernel)`
    """
    return _spectrum(kernel).prod(-1).astype(kernel.dtype)


@check_arguments
def population_log_volume(kernel: Array, jitter: float = 1e-4) -> Array:
    """Logarithm of a population's diversity, with large gradients where the diversity is near 0.

    log det(K + jitter I)

    Args:
      kernel: [..., M, M], similarities of the members' behavior, with a diagonal of 1.
      jitter: positive; keeps the value finite where members behave alike.
    Returns: [...], to be maximized.
    Gradients: none are stopped.
    Source: Parker-Holder et al., 2020, "Effective diversity in population based reinforcement
      learning" (the logarithm and the jitter as in determinantal point processes).
    Example: `losses.population_log_volume(kernel)`
    """
    eigenvalue = jnp.maximum(_spectrum(kernel) + jitter, 0.1 * jitter)
    return jnp.log(eigenvalue).sum(-1).astype(kernel.dtype)
