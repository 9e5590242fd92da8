"""Rewards in several channels, with one Q-function for each: `next_q_values` are [..., K, A].

The second-to-last axis is the channels (weighted and summed), so that the choice of an action, a
maximum over A, is over the last axis as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import at_action
from jaxrl.losses.values.errors_and_targets import td_target
from jaxrl.losses.values.q_learning import expected_sarsa_target, q_learning_target

__all__ = [
    "aggregate_q_values",
    "hybrid_reward_target",
    "mapped_q_target",
    "q_decomposition_target",
    "sign_channels",
]


@check_arguments
def sign_channels(reward: Array) -> Array:
    """Split a reward into two nonnegative channels: gains and losses.

    (max(reward, 0), max(-reward, 0)); with weights (1, -1) they sum to the reward

    Args: reward: [...].
    Returns: [..., 2].
    Gradients: none are stopped.
    Source: van Seijen et al., 2019, "Using a logarithmic mapping to enable lower discount factors
      in reinforcement learning", section 4.
    Example: `losses.sign_channels(reward)`
    """
    return jnp.stack([jnp.maximum(reward, 0), jnp.maximum(-reward, 0)], -1)


@check_arguments
def aggregate_q_values(q_values: Array, weight: Array) -> Array:
    """Combine the Q-values of reward channels into those to act by.

    sum_k weight[k] q_values[k, a]

    Args:
      q_values: [..., K, A].
      weight: broadcasts to [..., K].
    Returns: [..., A].
    Gradients: none are stopped.
    Source: van Seijen et al., 2017, "Hybrid reward architecture for reinforcement learning";
      Russell and Zimdars, 2003, "Q-decomposition for reinforcement learning agents".
    Example: `losses.aggregate_q_values(q_values, weight)`
    """
    return (weight[..., None] * q_values).sum(-2)


@check_arguments
def hybrid_reward_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_values: Array,
    action_prob: Array | None = None,
) -> Array:
    """Targets of the hybrid reward architecture (HRA), where each channel learns on its own.

    reward[k] + discount * max_a next_q_values[k, a], or with a policy
    reward[k] + discount * sum_a action_prob[a] next_q_values[k, a]

    Args:
      reward: [..., K], one for each channel.
      terminated: [...].
      discount: gamma, broadcasts to [..., K].
      next_q_values: [..., K, A].
      action_prob: [..., A] or None. With one policy for all channels (e.g. a uniform one) the sum
        of the channels' values is the value of the summed reward; with each channel's own best
        action, the sum is optimistic.
    Returns: [..., K].
    Gradients: none.
    Source: van Seijen et al., 2017, "Hybrid reward architecture for reinforcement learning",
      section 3.
    Example: `losses.hybrid_reward_target(reward, terminated, discount, next_q_values)`
    """
    terminated = terminated[..., None]
    if action_prob is None:
        return q_learning_target(reward, terminated, discount, next_q_values)
    action_prob = jnp.broadcast_to(action_prob[..., None, :], next_q_values.shape)
    return expected_sarsa_target(reward, terminated, discount, next_q_values, action_prob)


@check_arguments
def q_decomposition_target(
    reward: Array, terminated: Array, discount: Array | float, next_q_values: Array, weight: Array
) -> Array:
    """Q-decomposition's targets: all reward channels follow the action that is best for their sum.

    reward[k] + discount * next_q_values[k, a*], a* = argmax_a sum_k weight[k] next_q_values[k, a]

    Args:
      reward: [..., K], one for each channel.
      terminated: [...].
      discount: gamma, broadcasts to [..., K].
      next_q_values: [..., K, A].
      weight: broadcasts to [..., K].
    Returns: [..., K].
    Gradients: none.
    Source: Russell and Zimdars, 2003, "Q-decomposition for reinforcement learning agents"; Fatemi
      and Tavakoli, 2022, "Orchestrated value mapping for reinforcement learning".
    Example: `losses.q_decomposition_target(reward, terminated, discount, next_q_values, weight)`
    """
    best = aggregate_q_values(next_q_values, weight).argmax(-1)[..., None]
    chosen = at_action(next_q_values, jnp.broadcast_to(best, next_q_values.shape[:-1]))
    return td_target(reward, terminated[..., None], discount, chosen)


@check_arguments
def mapped_q_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    q_value: Array,
    next_q_values: Array,
    weight: Array,
    forward: Callable[[Array], Array],
    inverse: Callable[[Array], Array],
    step: Array | float = 1.0,
) -> Array:
    """Targets of reward channels whose values are learned in another space, e.g. logarithmic.

    forward(q + step * (target - q)), q = inverse(q_value),
    target = q_decomposition_target(..., inverse(next_q_values), weight)

    Args:
      reward: [..., K], one for each channel.
      terminated: [...].
      discount: gamma, broadcasts to [..., K].
      q_value: [..., K], mapped, of the taken action.
      next_q_values: [..., K, A], mapped.
      weight: broadcasts to [..., K].
      forward, inverse: a mapping of values and its inverse, functions of an array, e.g. a
        logarithm of nonnegative values. Each sees all channels at once, so that they can differ.
      step: how far to move toward the target before mapping; averaging there, and not only in the
        mapped space, keeps values unbiased in stochastic environments.
    Returns: [..., K], mapped.
    Gradients: none.
    Source: Fatemi and Tavakoli, 2022, "Orchestrated value mapping for reinforcement learning";
      van Seijen et al., 2019, "Using a logarithmic mapping to enable lower discount factors in
      reinforcement learning", section 4.
    Example: `losses.mapped_q_target(reward, terminated, discount, q_value, next_q_values, weight,
      forward, inverse, step=0.1)`
    """
    value = inverse(q_value)
    target = q_decomposition_target(reward, terminated, discount, inverse(next_q_values), weight)
    return jax.lax.stop_gradient(forward(value + step * (target - value)))
