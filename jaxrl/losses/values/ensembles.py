"""Ensembles of Q-functions: bounds, weights by disagreement, smoothness.

The last axis is the ensemble's members.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.values.errors_and_targets import squared_error

__all__ = [
    "lower_confidence_bound",
    "ood_penalty",
    "optimistic_score",
    "q_deviation",
    "q_smoothness",
    "uncertainty_weight",
]


@check_arguments
def q_deviation(q_values: Array) -> Array:
    """Standard deviation over an ensemble: how much its members disagree.

    sqrt(mean_e (q_values[e] - mean)^2), the population's standard deviation

    Args: q_values: [..., E].
    Returns: [...].
    Gradients: none are stopped; 0 where all members agree.
    Source: Osband et al., 2016, "Deep exploration via bootstrapped DQN"; common usage.
    Example: `losses.q_deviation(q_values)`
    """
    variance = q_values.var(-1)
    varies = variance > 0
    return jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1)), 0)


@check_arguments
def lower_confidence_bound(q_values: Array, beta: Array | float) -> Array:
    """Pessimistic value: the ensemble's mean minus its disagreement.

    mean_e q_values[e] - beta * q_deviation(q_values)

    Args:
      q_values: [..., E].
      beta: how pessimistic, broadcasts to [...]; negative: an optimistic bound.
    Returns: [...].
    Gradients: none are stopped.
    Source: Bai et al., 2022, "Pessimistic bootstrapping for uncertainty-driven offline
      reinforcement learning"; An et al., 2021, "Uncertainty-based offline reinforcement learning
      with diversified Q-ensemble" (SAC-N, which uses the minimum instead); Ghasemipour et
      al., 2022, "Why so pessimistic? Estimating uncertainties for offline RL through ensembles,
      and why their independence matters" (MSG: for the policy, each critic with its own target).
    Example: `losses.lower_confidence_bound(q_values, beta=1.0)`
    """
    return q_values.mean(-1) - beta * q_deviation(q_values)


@check_arguments
def optimistic_score(q_value: Array, novelty: Array, bonus: Array | float) -> Array:
    """Score for choosing among candidate actions: value plus a bonus for novelty.

    q_value + bonus * novelty

    Args:
      q_value, novelty: [...], of candidate actions; the novelty is e.g. the disagreement of models
        about the outcome.
      bonus: lambda, broadcasts to [...].
    Returns: [...]; choose the action with the highest score.
    Gradients: none are stopped.
    Source: Yao et al., 2021, "Sample efficient reinforcement learning via model-ensemble
      exploration and exploitation"; Lee et al., 2021, "SUNRISE: a simple unified framework for
      ensemble learning in deep reinforcement learning" (with disagreement of Q-values).
    Example: `losses.optimistic_score(q_value, novelty, bonus=1.0)`
    """
    return q_value + bonus * novelty


@check_arguments
def uncertainty_weight(
    uncertainty: Array, temperature: Array | float, least: Array | float = 0.0
) -> Array:
    """Weight of a sample in a loss: 1 if it is certain, less if it is uncertain.

    least + 2 (1 - least) sigmoid(-temperature * uncertainty)

    Args:
      uncertainty: [...], nonnegative, e.g. the deviation of models or of target critics.
      temperature: how fast the weight falls, broadcasts to [...].
      least: the weight of a completely uncertain sample; MEEE's is 0, SUNRISE's 0.5.
    Returns: [...].
    Gradients: none.
    Source: Yao et al., 2021, "Sample efficient reinforcement learning via model-ensemble
      exploration and exploitation" (published code); Lee et al., 2021, "SUNRISE: a simple unified
      framework for ensemble learning in deep reinforcement learning".
    Example: `losses.uncertainty_weight(uncertainty, temperature=10.0)`
    """
    doubt = jax.nn.sigmoid(-temperature * jax.lax.stop_gradient(uncertainty))
    return least + 2 * (1 - least) * doubt


@check_arguments
def q_smoothness(
    q_values: Array, perturbed_q_values: Array, expectile: Array | float = 0.5
) -> Array:
    """Penalty on critics' largest change under small perturbations of the state.

    max_m mean_e w d^2, d = perturbed_q_values[m, e] - q_values[e], w = 1 - expectile where d > 0,
    else expectile

    Args:
      q_values: [..., E], at the state.
      perturbed_q_values: [..., M, E], the same action at M perturbed states.
      expectile: in [0, 1]; below 0.5 overestimation counts more.
    Returns: [...].
    Gradients: none are stopped; they flow through the worst sample.
    Source: Yang et al., 2022, "RORL: robust offline reinforcement learning via conservative
      smoothing" (published code); Wen et al., 2024,
      "Towards robust offline-to-online reinforcement learning via uncertainty and smoothness"
      (RO2O: symmetric, which is 0.5 here with twice the weight).
    Example: `losses.q_smoothness(q_values, perturbed_q_values).mean()`
    """
    difference = perturbed_q_values - q_values[..., None, :]
    weight = jnp.where(difference > 0, 1 - expectile, expectile)
    return (weight * jnp.square(difference)).mean(-1).max(-1)


@check_arguments
def ood_penalty(q_values: Array, beta: Array | float) -> Array:
    """Loss that lowers each critic where the ensemble disagrees, for out-of-distribution actions.

    squared_error(q_values[e], q_values[e] - beta * q_deviation(q_values)), the target a constant

    Args:
      q_values: [..., E], of the policy's actions (PBRL), or at perturbed states (RORL, RO2O, whose
        squares are not halved).
      beta: how much lower the target is, broadcasts to [...].
    Returns: [..., E].
    Gradients: flow into each critic, beta times the deviation, but not into its target.
    Source: Bai et al., 2022, "Pessimistic bootstrapping for uncertainty-driven offline
      reinforcement learning"; Yang et al., 2022, "RORL: robust offline reinforcement learning via
      conservative smoothing" (published code); Wen et al., 2024,
      "Towards robust offline-to-online reinforcement learning via uncertainty and smoothness"
      (RO2O).
    Example: `losses.ood_penalty(q_values, beta=1.0).mean()`
    """
    return squared_error(q_values, q_values - beta * q_deviation(q_values)[..., None])
