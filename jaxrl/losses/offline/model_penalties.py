"""Uncertainty penalties for the rewards of rollouts of an ensemble of learned models.

Each of N members predicts a Gaussian of D independent dimensions: means and scales (standard
deviations) are [..., D, N], members last.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import safe_norm
from jaxrl.losses.divergences.entropy_and_kl import gaussian_kl
from jaxrl.losses.exploration.bonuses import ensemble_disagreement

__all__ = [
    "ensemble_deviation",
    "ensemble_variance",
    "leave_one_out_kl",
    "max_aleatoric",
    "max_pairwise_difference",
    "pessimistic_reward",
]


@check_arguments
def max_aleatoric(scale: Array) -> Array:
    """MOPO's penalty: the largest noise predicted by any member of the ensemble.

    max_n |scale_n|

    Args: scale: [..., D, N], standard deviations.
    Returns: [...].
    Gradients: none are stopped.
    Source: Yu et al., 2020, "MOPO: model-based offline policy optimization".
    Example: `losses.max_aleatoric(scale)`
    """
    return safe_norm(scale, axis=-2).max(-1)


@check_arguments
def max_pairwise_difference(mean: Array) -> Array:
    """MOReL's penalty: the largest distance between the predictions of two members.

    max_{i, j} |mean_i - mean_j|

    Args: mean: [..., D, N].
    Returns: [...]; 0 for a single member.
    Gradients: none are stopped.
    Source: Kidambi et al., 2020, "MOReL: model-based offline reinforcement learning".
    Example: `losses.max_pairwise_difference(mean)`
    """
    return safe_norm(mean[..., :, None] - mean[..., None, :], axis=-3).max((-2, -1))


@check_arguments
def ensemble_variance(mean: Array, scale: Array) -> Array:
    """Total variance of an ensemble's prediction: the members' disagreement plus their noise.

    sum_d mean_n(scale_dn^2 + (mean_dn - m_d)^2), m = mean_n mean_n: the mixture's variance

    Args: mean, scale: [..., D, N]; with scale 0 only the disagreement, the sum of
      `ensemble_disagreement(mean)`.
    Returns: [...].
    Gradients: none are stopped.
    Source: Lakshminarayanan et al., 2017, "Simple and scalable predictive uncertainty estimation
      using deep ensembles"; as a penalty in Lu et al., 2022, "Revisiting design choices in offline
      model-based reinforcement learning". The sum over dimensions is our choice.
    Example: `losses.ensemble_variance(mean, scale)`
    """
    return (jnp.square(scale).mean(-1) + ensemble_disagreement(mean)).sum(-1)


@check_arguments
def ensemble_deviation(mean: Array, scale: Array) -> Array:
    """Standard deviation of an ensemble's prediction, from disagreement and noise.

    sqrt(ensemble_variance)

    Args: mean, scale: [..., D, N]; with scale 0 only the disagreement.
    Returns: [...].
    Gradients: none are stopped; 0 where the deviation is 0.
    Source: Lu et al., 2022, "Revisiting design choices in offline model-based reinforcement
      learning" (ensemble standard deviation); see `ensemble_variance`.
    Example: `losses.ensemble_deviation(mean, scale)`
    """
    variance = ensemble_variance(mean, scale)
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)


@check_arguments
def leave_one_out_kl(mean: Array, scale: Array) -> Array:
    """Divergence of each member of an ensemble from the mixture of the others.

    KL(N(mean_n, scale_n) || N(m_n, s_n)), with m_n and s_n of the mixture of all but n

    Args: mean, scale: [..., D, N], N at least 2; scales are positive.
    Returns: [..., N], one per member: use that of the member that made the rollout's step.
    Gradients: none are stopped.
    Source: Pan et al., 2020, "Trust the model when it is confident: masked model-based
      actor-critic" (one versus rest); Lu et al., 2022, "Revisiting design choices in offline
      model-based reinforcement learning" (LOO KL).
    Example: `losses.leave_one_out_kl(mean, scale).mean(-1)`
    """
    number = mean.shape[-1]
    rest = (1 - jnp.eye(number, dtype=mean.dtype)) / (number - 1)  # row n: weights of all but n
    center = mean.mean(-1, keepdims=True)  # for precision only
    rest_mean = ((mean - center)[..., None, :] * rest).sum(-1) + center
    spread = jnp.square(mean[..., None, :] - rest_mean[..., :, None])
    rest_scale = jnp.sqrt(((jnp.square(scale)[..., None, :] + spread) * rest).sum(-1))
    return gaussian_kl(*(jnp.moveaxis(x, -2, -1) for x in (mean, scale, rest_mean, rest_scale)))


@check_arguments
def pessimistic_reward(reward: Array, penalty: Array, beta: Array | float) -> Array:
    """Reward of a learned model's step minus a penalty for the model's uncertainty.

    reward - beta * penalty

    Args:
      reward, penalty: [...]; the penalty is one from this file or any other.
      beta: the penalty's weight, MOPO's lambda, broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped.
    Source: Yu et al., 2020, "MOPO: model-based offline policy optimization".
    Example: `losses.pessimistic_reward(reward, penalty, beta=1.0)`
    """
    return reward - beta * penalty
