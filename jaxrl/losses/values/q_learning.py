"""Regression targets of Q-values: fit the taken action's value to one by `squared_error`.

`next_q_values` belong to the true successor, even where the episode was truncated. Actions that
cannot be taken have the Q-value -inf.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import at_action
from jaxrl.losses.values.errors_and_targets import td_target

__all__ = [
    "advantage_learning_target",
    "double_q_target",
    "expected_sarsa_target",
    "expected_value",
    "iterated_q_target",
    "persistent_q_target",
    "q_advantage",
    "q_learning_target",
]


@check_arguments
def q_learning_target(
    reward: Array, terminated: Array, discount: Array | float, next_q_values: Array
) -> Array:
    """Q-learning's target: the best next action's value; with a target network, DQN's target.

    reward + discount * max_a next_q_values[a], the last term 0 where terminated

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., A].
    Returns: [...].
    Gradients: none.
    Source: Watkins and Dayan, 1992, "Q-learning"; Mnih et al., 2015, "Human-level control through
      deep reinforcement learning".
    Example: `losses.q_learning_target(reward, terminated, discount, next_q_values)`
    """
    return td_target(reward, terminated, discount, next_q_values.max(-1))


@check_arguments
def double_q_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_values: Array,
    selector_q_values: Array,
) -> Array:
    """Double Q-learning's target: one estimate chooses the next action, another evaluates it.

    reward + discount * next_q_values[argmax_a selector_q_values[a]], 0 where terminated

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., A], for evaluation (double DQN: the target network's).
      selector_q_values: [..., A], for selection (double DQN: the online network's).
    Returns: [...].
    Gradients: none.
    Source: van Hasselt et al., 2016, "Deep reinforcement learning with double Q-learning".
    Example: `losses.double_q_target(reward, terminated, discount, next_q_values,
      selector_q_values)`
    """
    chosen = at_action(next_q_values, selector_q_values.argmax(-1))
    return td_target(reward, terminated, discount, chosen)


@check_arguments
def expected_value(q_values: Array, action_prob: Array) -> Array:
    """Value of a state under a policy: the mean of its Q-values.

    sum_a action_prob[a] q_values[a]

    Args: q_values, action_prob: [..., A]; a Q-value with probability 0 has no influence.
    Returns: [...].
    Gradients: none are stopped.
    Source: Sutton and Barto, 2018, "Reinforcement learning", section 3.5.
    Example: `losses.expected_value(q_values, action_prob)`
    """
    return (action_prob * jnp.where(action_prob > 0, q_values, 0)).sum(-1)


@check_arguments
def expected_sarsa_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_values: Array,
    action_prob: Array,
) -> Array:
    """Expected Sarsa's target: the mean of the next Q-values under a policy.

    reward + discount * sum_a action_prob[a] next_q_values[a], the last term 0 where terminated

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values, action_prob: [..., A].
    Returns: [...].
    Gradients: none.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 6.9.
    Example: `losses.expected_sarsa_target(reward, terminated, discount, next_q_values,
      action_prob)`
    """
    return td_target(reward, terminated, discount, expected_value(next_q_values, action_prob))


@check_arguments
def q_advantage(q_values: Array, action: Array, action_prob: Array) -> Array:
    """Advantage of the taken action over a policy's average, from Q-values.

    A(s, a) = Q(s, a) - V(s) = q_values[action] - sum_a action_prob[a] q_values[a]

    Args:
      q_values, action_prob: [..., A].
      action: [...], integers.
    Returns: [...].
    Gradients: none are stopped.
    Source: Baird, 1993, "Advantage updating"; Wang et al., 2016, "Dueling network architectures
      for deep reinforcement learning"; Zhu et al., 2023, "General Munchausen reinforcement
      learning with Tsallis Kullback-Leibler divergence" (with the Tsallis policy).
    Example: `losses.q_advantage(q_values, action, action_prob)`
    """
    return at_action(q_values, action) - expected_value(q_values, action_prob)


@check_arguments
def advantage_learning_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    q_values: Array,
    action: Array,
    next_q_values: Array,
    scale: Array | float,
) -> Array:
    """Advantage learning's target: Q-learning's with a penalty that widens the action gap.

    q_learning_target - scale * (max_a q_values[a] - q_values[action])

    Args:
      reward, terminated, action: [...].
      discount, scale: gamma and alpha, the latter in [0, 1); broadcast to [...].
      q_values, next_q_values: [..., A], of the state and of its successor.
    Returns: [...].
    Gradients: none.
    Source: Bellemare et al., 2016, "Increasing the action gap: new operators for reinforcement
      learning" (advantage learning); Baird, 1999, "Reinforcement learning through gradient
      descent".
    Example: `losses.advantage_learning_target(reward, terminated, discount, q_values, action,
      next_q_values, scale)`
    """
    gap = at_action(q_values, action) - q_values.max(-1)
    return q_learning_target(reward + scale * gap, terminated, discount, next_q_values)


@check_arguments
def persistent_q_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    action: Array,
    next_q_values: Array,
    scale: Array | float,
) -> Array:
    """Target that interpolates between the best next action and repeating the last one.

    reward + discount * ((1 - scale) max_a next_q_values[a] + scale next_q_values[action])

    Args:
      reward, terminated, action: [...].
      discount, scale: gamma and the weight of repeating, in [0, 1]; broadcast to [...].
      next_q_values: [..., A].
    Returns: [...].
    Gradients: none.
    Source: Bellemare et al., 2016, "Increasing the action gap: new operators for reinforcement
      learning" (persistent advantage learning).
    Example: `losses.persistent_q_target(reward, terminated, discount, action, next_q_values,
      scale)`
    """
    best, same = next_q_values.max(-1), at_action(next_q_values, action)
    return td_target(reward, terminated, discount, (1 - scale) * best + scale * same)


@check_arguments
def iterated_q_target(
    reward: Array, terminated: Array, discount: Array | float, next_q_values: Array
) -> Array:
    """Targets of a chain of Q-functions, each the Bellman backup of the previous one.

    target[k + 1] = reward + discount * max_a next_q_values[k, a], k = 0 ... K - 1

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., K, A], of the target networks of functions 0 to K - 1.
    Returns: [..., K], the targets of functions 1 to K; K = 1 is `q_learning_target`.
    Gradients: none.
    Source: Vincent et al., 2024, "Iterated Q-network: beyond one-step Bellman updates in deep
      reinforcement learning".
    Example: `losses.iterated_q_target(reward, terminated, discount, next_q_values)`
    """
    backup = jax.vmap(q_learning_target, in_axes=(None, None, None, -2), out_axes=-1)
    return backup(reward, terminated, discount, next_q_values)
