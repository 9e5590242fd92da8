"""Credit assignment: split returns into skill and luck, or credit actions in hindsight."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.advantages.returns import lambda_returns, n_step_returns

__all__ = ["hindsight_advantage", "return_decomposition_error", "state_hindsight_values"]


@check_arguments
def return_decomposition_error(
    reward: Array,
    value: Array,
    next_value: Array,
    advantage: Array,
    luck: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
    n: int | None = None,
) -> Array:
    """Part of a return left unexplained by skill (advantages) and luck (nature's advantages).

    n-step return of (reward - advantage - discount * luck), bootstrapped, minus value[t]: zero on
    every trajectory of any policy if value, advantage and luck are exact. Minimize its square,
    with centered parts: sum_a pi(a|s) advantage(s, a) = 0, E[luck | s, a] = 0 over next states

    Args:
      reward, terminated, done: [T, ...].
      value, next_value: [T, ...], of the states and their true successors.
      advantage: [T, ...], A(s_t, a_t).
      luck: [T, ...], B(s_t, a_t, s_{t+1}); with zeros this is on-policy DAE.
      discount: a scalar, [...] or [T, ...].
      n: number of steps, static; None: to the end of the episode or the window.
    Returns: errors [T, ...].
    Gradients: flow into all arguments but `next_value` (from the target network).
    Source: Pan et al., 2022, "Direct advantage estimation"; Pan and Schölkopf, 2024, "Skill
      or luck? Return decomposition via advantage functions".
    Example: `losses.return_decomposition_error(
      reward, value, next_value, advantage, luck, terminated, done, 0.99) ** 2`
    """
    left = reward - advantage - discount * luck
    bootstrap = jax.lax.stop_gradient(next_value)
    if n is None:
        return lambda_returns(left, bootstrap, terminated, done, discount, 1.0) - value
    return n_step_returns(left, bootstrap, terminated, done, discount, n) - value


@check_arguments
def hindsight_advantage(log_prob: Array, hindsight_log_prob: Array, returns: Array) -> Array:
    """Advantage of an action, by how much likelier the action is once the return is known.

    (1 - pi(a|s) / h(a|s, Z)) * Z; its mean over pi's actions and their returns Z is the advantage

    Args:
      log_prob: [...], log pi(a|s) of the taken action.
      hindsight_log_prob: [...], log h(a|s, Z), the action's probability given state and return.
      returns: [...], Z.
    Returns: [...].
    Gradients: none are stopped; the ratio is kept below exp(60).
    Source: Harutyunyan et al., 2019, "Hindsight credit assignment", theorem 2.
    Example: `losses.hindsight_advantage(log_prob, hindsight_log_prob, returns)`
    """
    return (1 - jnp.exp(jnp.minimum(log_prob - hindsight_log_prob, 60.0))) * returns


@check_arguments
def state_hindsight_values(
    reward: Array, action_reward: Array, ratio: Array, done: Array, discount: Array | float
) -> Array:
    """Values of all actions, taken or not, from the states that a trajectory visits later.

    Q[t, a] = action_reward[t, a] + sum_{k > t} discount^(k - t) ratio[t, k, a] reward[k], the sum
    cut after the first done step, ratio[t, k, a] = h(a|s_t, s_k) / pi(a|s_t)

    Args:
      reward, done: [T, ...].
      action_reward: [T, ..., A], a model of the immediate reward of each action.
      ratio: [T, T, ..., A], indexed by the step t of the action and the step k of the later state;
        entries with k <= t are not used.
      discount: a scalar.
    Returns: [T, ..., A], without a bootstrap after the last step.
    Gradients: none are stopped.
    Source: Harutyunyan et al., 2019, "Hindsight credit assignment", theorem 1.
    Example: `losses.state_hindsight_values(reward, action_reward, ratio, done, discount=0.99)`
    """
    length = len(reward)
    step = jnp.arange(length)
    distance = step[None, :] - step[:, None]  # k - t
    ends = jnp.cumsum(done, 0)
    episode = ends - done  # the number of episodes that ended before each step
    same = episode[:, None] == episode[None, :]
    later = (distance > 0).reshape(length, length, *[1] * (reward.ndim - 1)) & same
    weight = jnp.asarray(discount, reward.dtype) ** jnp.maximum(distance, 0).astype(reward.dtype)
    weight = jnp.where(later, weight.reshape(later.shape[:2] + (1,) * (reward.ndim - 1)), 0)
    terms = jnp.where(later[..., None], (weight * reward[None])[..., None] * ratio, 0)
    return action_reward + terms.sum(1)
