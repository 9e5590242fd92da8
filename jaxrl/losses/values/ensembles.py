"""What several Q-functions know together: bounds, weights by disagreement, smoothness.

The last axis is the ensemble's members.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

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


def q_deviation(q_values: Array) -> Array:
    """Standard deviation over an ensemble: how much its members disagree.

    sqrt(mean_e (q_values[e] - mean)^2), the population's

    Args: q_values: [..., E].
    Returns: [...].
    Gradients: none is stopped; 0 where all members agree.
    Source: Osband et al., 2016, "Deep exploration via bootstrapped DQN"; common usage.
    Example: `losses.q_deviation(q_values)`
    """
    variance = q_values.var(-1)
    varies = variance > 0
    return jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1)), 0)


def lower_confidence_bound(q_values: Array, beta: Array | float) -> Array:
    """A pessimistic value: the ensemble's mean minus its disagreement.

    mean_e q_values[e] - beta * q_deviation(q_values)

    Args:
      q_values: [..., E].
      beta: how pessimistic, broadcasts to [...]; negative: an optimistic bound.
    Returns: [...].
    Gradients: none is stopped.
    Source: Bai et al., 2022, "Pessimistic bootstrapping for uncertainty-driven offline
      reinforcement learning"; An et al., 2021, "Uncertainty-based offline reinforcement learning
      with diversified Q-ensemble" (which takes the minimum in its place: SAC-N); Ghasemipour et
      al., 2022, "Why so pessimistic? Estimating uncertainties for offline RL through ensembles,
      and why their independence matters" (MSG: for the policy, each critic with its own target).
    Example: `losses.lower_confidence_bound(q_values, beta=1.0)`
    """
    return q_values.mean(-1) - beta * q_deviation(q_values)


def optimistic_score(q_value: Array, novelty: Array, bonus: Array | float) -> Array:
    """What to choose an action by among candidates: its value plus a bonus for the unknown.

    q_value + bonus * novelty

    Args:
      q_value, novelty: [...], of candidate actions; e.g. the disagreement of models about what
        follows.
      bonus: lambda, broadcasts to [...].
    Returns: [...]; act by its argmax.
    Gradients: none is stopped.
    Source: Yao et al., 2021, "Sample efficient reinforcement learning via model-ensemble
      exploration and exploitation"; Lee et al., 2021, "SUNRISE: a simple unified framework for
      ensemble learning in deep reinforcement learning" (with Q-values' disagreement).
    Example: `losses.optimistic_score(q_value, novelty, bonus=1.0)`
    """
    return q_value + bonus * novelty


def uncertainty_weight(
    uncertainty: Array, temperature: Array | float, least: Array | float = 0.0
) -> Array:
    """Weight of a sample in a loss: 1 where it is certain, less where it is not.

    least + 2 (1 - least) sigmoid(-temperature * uncertainty)

    Args:
      uncertainty: [...], not negative, e.g. the deviation of models or of target critics.
      temperature: how fast the weight falls, broadcasts to [...].
      least: the weight of what is altogether uncertain; MEEE's is 0, SUNRISE's 0.5.
    Returns: [...].
    Gradients: none.
    Source: Yao et al., 2021, "Sample efficient reinforcement learning via model-ensemble
      exploration and exploitation" (published code); Lee et al., 2021, "SUNRISE: a simple unified
      framework for ensemble learning in deep reinforcement learning".
    Example: `losses.uncertainty_weight(uncertainty, temperature=10.0)`
    """
    doubt = jax.nn.sigmoid(-temperature * jax.lax.stop_gradient(uncertainty))
    return least + 2 * (1 - least) * doubt


def q_smoothness(
    q_values: Array, perturbed_q_values: Array, expectile: Array | float = 0.5
) -> Array:
    """Penalty on critics that change when the state is slightly perturbed: the worst sample's.

    max_m mean_e w d^2, d = perturbed_q_values[m, e] - q_values[e], w = 1 - expectile where d > 0,
    else expectile

    Args:
      q_values: [..., E], at the state.
      perturbed_q_values: [..., M, E], the same action at M perturbed states.
      expectile: in [0, 1]; below 0.5 overestimation counts more.
    Returns: [...].
    Gradients: none is stopped; they flow through the worst sample.
    Source: Yang et al., 2022, "RORL: robust offline reinforcement learning via conservative
      smoothing" (published code); Wen et al., 2024, "Toward robust offline-to-online
      reinforcement learning via uncertainty and smoothness" (RO2O: both sides alike, which is 0.5
      here, with twice the weight).
    Example: `losses.q_smoothness(q_values, perturbed_q_values).mean()`
    """
    difference = perturbed_q_values - q_values[..., None, :]
    weight = jnp.where(difference > 0, 1 - expectile, expectile)
    return (weight * jnp.square(difference)).mean(-1).max(-1)


def ood_penalty(q_values: Array, beta: Array | float) -> Array:
    """Loss that lowers each critic where the ensemble disagrees: for actions outside the data.

    squared_error(q_values[e], q_values[e] - beta * q_deviation(q_values)), a target of its own

    Args:
      q_values: [..., E], of actions of the policy: PBRL; at perturbed states: RORL, RO2O (whose
        squares are not halved).
      beta: how much lower the target is, broadcasts to [...].
    Returns: [..., E].
    Gradients: flow into the critics, not into their target: beta times the deviation, for each.
    Source: Bai et al., 2022, "Pessimistic bootstrapping for uncertainty-driven offline
      reinforcement learning"; Yang et al., 2022, "RORL: robust offline reinforcement learning via
      conservative smoothing" (published code); Wen et al., 2024, "Toward robust offline-to-online
      reinforcement learning via uncertainty and smoothness" (RO2O).
    Example: `losses.ood_penalty(q_values, beta=1.0).mean()`
    """
    return squared_error(q_values, q_values - beta * q_deviation(q_values)[..., None])
