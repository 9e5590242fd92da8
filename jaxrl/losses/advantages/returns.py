"""Returns and advantages of each step of a window.

Time is axis 0. `next_value[t]` is the value of the true successor of step t, even where the episode
was truncated. `terminated[t]` ends the value, `done[t]` (terminated or truncated) ends the trace: a
truncated step bootstraps from `next_value`, and nothing flows back over it from later steps. The
last step of a window bootstraps too, unless it terminated. `discount` and `lambda_` are scalars,
[...], or [T, ...] where each step has its own (options, macro-actions, learned discounts).
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.checks import check_arguments, check_equal_shapes
from jaxrl.core.types import Array
from jaxrl.losses.advantages.recurrences import reverse_recurrence
from jaxrl.losses.values.bellman_errors import td_error

__all__ = [
    "differential_gae",
    "discounted_returns",
    "gae",
    "lambda_returns",
    "masked_gae",
    "n_step_returns",
]


@check_arguments
def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
    lambda_: Array | float,
) -> Array:
    """Generalized advantage estimates (GAE): decaying sums of TD errors, TD(lambda)'s error.

    A[t] = delta[t] + discount * lambda_ * A[t + 1], the last term 0 where done[t], with
    delta[t] = reward[t] + discount * next_value[t] - value[t], next_value 0 where terminated[t]

    Args:
      reward, value, next_value, terminated, done: [T, ...].
      discount, lambda_: gamma and lambda, scalars, [...] or [T, ...].
    Returns: advantages [T, ...]; add `value` for the lambda-return.
    Gradients: none are stopped.
    Source: Schulman et al., 2016, "High-dimensional continuous control using generalized advantage
      estimation", eq. 16.
    Example: `losses.gae(reward, value, next_value, terminated, done, discount=0.99, lambda_=0.95)`
    """
    check_equal_shapes(
        "gae", reward=reward, value=value, next_value=next_value, terminated=terminated, done=done
    )

    def step(reward, value, next_value, terminated, discount, lambda_):
        return discount * lambda_, td_error(value, reward, terminated, discount, next_value)

    inputs = (reward, value, next_value, terminated, discount, lambda_)
    return reverse_recurrence(step, 0, done, *inputs)


@check_arguments
def masked_gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    mask: Array,
    discount: Array | float,
    lambda_: Array | float,
) -> Array:
    """Generalized advantage estimates of decisions alone: what lies between them takes no time.

    A[t] = delta[t] + discount * lambda_ * A[u], delta[t] = R[t] + discount * value[u] - value[t],
    with u the next decision after decision t and R[t] the sum of the rewards from t to before u

    It is `gae` of the decisions, put side by side. Values of other steps, such as those at which a
    text is continued by a tool, are not read, and neither discount nor lambda decay over them.

    Args:
      reward, value, next_value, terminated, done: [T, ...], as in `gae`.
      mask: [T, ...], true where a step is a decision.
      discount, lambda_: gamma and lambda, scalars, [...] or [T, ...].
    Returns: advantages [T, ...]; 0 where the mask is false.
    Gradients: none are stopped.
    Source: Schulman et al., 2016, "High-dimensional continuous control using generalized advantage
      estimation", eq. 16; verl skips observation tokens so, where they have no reward.
    Example: `losses.masked_gae(reward, value, next_value, terminated, done, mask, 1.0, 0.95)`
    """
    check_equal_shapes(
        "masked_gae",
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        done=done,
        mask=mask,
    )
    # Where the step after this one is not skipped, or is none of this window's episode.
    stop = done | jnp.concatenate([mask[1:], jnp.ones_like(mask[:1])])
    bootstrap = jnp.where(stop & ~terminated, next_value, 0)
    carry = lambda x: (jnp.ones_like(x), x)
    reward, after = (reverse_recurrence(carry, 0, stop, x) for x in (reward, bootstrap))

    def step(reward, value, after, mask, discount, lambda_):
        error = reward + discount * after - value
        return jnp.where(mask, discount * lambda_, 1), jnp.where(mask, error, 0)

    inputs = (reward, value, after, mask, discount, lambda_)
    return jnp.where(mask, reverse_recurrence(step, 0, done, *inputs), 0)


@check_arguments
def differential_gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    reward_rate: Array | float,
    lambda_: Array | float,
) -> Array:
    """Advantages for maximizing the average reward per step, without a discount.

    gae of (reward - reward_rate) with discount 1; values are differential: the sum of future
    rewards in excess of the average

    Args:
      reward, value, next_value, terminated, done: [T, ...]; a continuing task never terminates.
      reward_rate: estimate of the average reward per step, a scalar or [...].
      lambda_: lambda, a scalar or [...].
    Returns: advantages [T, ...]; their mean times a step size updates `reward_rate`.
    Gradients: none are stopped.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 10.10; Zhang and Ross, 2021,
      "On-policy deep reinforcement learning for the average-reward criterion".
    Example: `losses.differential_gae(
      reward, value, next_value, terminated, done, reward_rate, lambda_=0.9)`
    """
    return gae(reward - reward_rate, value, next_value, terminated, done, 1.0, lambda_)


@check_arguments
def discounted_returns(
    reward: Array, done: Array, final_value: Array, discount: Array | float
) -> Array:
    """Monte Carlo returns: discounted sums of the rewards up to the episode's end.

    G[t] = reward[t] + discount * G[t + 1], cut where done[t]; with discount 1: returns-to-go

    Args:
      reward, done: [T, ...].
      final_value: [...], the value after the last step if it is not done.
      discount: a scalar, [...] or [T, ...].
    Returns: [T, ...].
    Gradients: none are stopped.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 3.9.
    Example: `losses.discounted_returns(reward, done, final_value, discount=0.99)`
    """
    check_equal_shapes("discounted_returns", reward=reward, done=done)

    step = lambda reward, discount: (discount, reward)
    return reverse_recurrence(step, final_value, done, reward, discount)


@check_arguments
def lambda_returns(
    reward: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
    lambda_: Array | float,
) -> Array:
    """TD(lambda)'s target: n-step returns of all lengths, longer ones with less weight.

    G[t] = reward[t] + discount * ((1 - lambda_) * next_value[t] + lambda_ * G[t + 1]); at done
    steps and at the last one next_value[t] replaces the bracket; it is 0 where terminated[t]

    Args:
      reward, next_value, terminated, done: [T, ...].
      discount, lambda_: gamma and lambda, scalars, [...] or [T, ...]; lambda 0: one step; lambda 1:
        to the end of the episode or the window.
    Returns: [T, ...].
    Gradients: none are stopped; the losses stop the gradients of their targets.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 12.18.
    Example: `losses.lambda_returns(reward, next_value, terminated, done, 0.99, lambda_=0.95)`
    """
    check_equal_shapes(
        "lambda_returns", reward=reward, next_value=next_value, terminated=terminated, done=done
    )

    def step(reward, next_value, terminated, done, discount, lambda_):
        share = jnp.where(done, 1, 1 - lambda_)  # weight of the bootstrap
        return discount * lambda_, reward + discount * jnp.where(terminated, 0, share * next_value)

    # The return after the last step is its bootstrap, so that the two weights add up to 1.
    final = next_value[-1] if len(reward) else 0
    inputs = (reward, next_value, terminated, done, discount, lambda_)
    return reverse_recurrence(step, final, done, *inputs)


@check_arguments
def n_step_returns(
    reward: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
    n: int,
) -> Array:
    """N-step returns: n rewards plus a bootstrap value, fewer where the episode ends earlier.

    G[t] = sum_{k < m} discount^k reward[t + k] + discount^m next_value[t + m - 1], with m = n or
    the number of steps to the end of the episode or the window, if smaller; next_value 0 where
    terminated

    Args:
      reward, next_value, terminated, done: [T, ...].
      discount: a scalar, [...] or [T, ...].
      n: number of steps, at least 1, static.
    Returns: [T, ...].
    Gradients: none are stopped.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 7.1.
    Example: `losses.n_step_returns(reward, next_value, terminated, done, discount=0.99, n=3)`
    """
    check_equal_shapes(
        "n_step_returns", reward=reward, next_value=next_value, terminated=terminated, done=done
    )
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    bootstrap = jnp.where(terminated, 0, next_value)
    ends = jnp.asarray(done, bool).at[-1:].set(True)
    returns = reward + discount * bootstrap
    for _ in range(n - 1):
        later = jnp.concatenate([returns[1:], returns[-1:]])  # the last row is never read
        returns = reward + discount * jnp.where(ends, bootstrap, later)
    return returns
