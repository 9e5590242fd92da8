"""Returns of one policy from another's steps: V-trace, Retrace, Q(lambda), upgoing returns.

Arguments are as in `returns.py`: time is axis 0, `next_value[t]` belongs to the true successor of
step t, `terminated[t]` ends the value, `done[t]` the trace.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxrl.core.checks import check_arguments, check_equal_shapes
from jaxrl.core.types import Array
from jaxrl.losses.advantages.recurrences import reverse_recurrence
from jaxrl.losses.advantages.returns import lambda_returns
from jaxrl.losses.values.bellman_errors import td_error

__all__ = [
    "VTrace",
    "corrected_returns",
    "q_lambda_returns",
    "retrace_returns",
    "upgo_returns",
    "vtrace",
]


def _next_step(x: Array) -> Array:
    """Return x[t + 1] at each t, 0 at the last."""
    return jnp.concatenate([x[1:], jnp.zeros_like(x[:1])])


class VTrace(NamedTuple):
    """Value targets [T, ...] and policy-gradient advantages [T, ...]."""

    target: Array
    advantage: Array


@check_arguments
def vtrace(
    ratio: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
    lambda_: Array | float = 1.0,
    clip_ratio: float = 1.0,
    clip_trace: float = 1.0,
) -> VTrace:
    """V-trace: value targets and advantages of a policy from another policy's steps.

    target[t] = value[t] + error[t],
    advantage[t] = rho[t] * (delta[t] + discount * lambda_ * error[t + 1]),
    error[t] = rho[t] * delta[t] + discount * c[t] * error[t + 1], error 0 after done steps,
    rho = min(ratio, clip_ratio), c = lambda_ * min(ratio, clip_trace), delta = td_error

    Args:
      ratio: [T, ...], probability of the action under the learner over that under the actor, from
        `importance_ratio`.
      reward, value, next_value, terminated, done: [T, ...]. Within an episode next_value[t] must
        be value[t + 1]: later corrections are changes relative to that value.
      discount, lambda_: gamma and lambda, scalars, [...] or [T, ...].
      clip_ratio: rho-bar; determines which policy's values these are. Infinite: the learner's.
      clip_trace: c-bar; determines the variance.
    Returns: targets and advantages, [T, ...] each. On-policy with lambda 1 the targets are n-step
      returns to the end of the window or the episode.
    Gradients: none are stopped; IMPALA stops those through targets, advantages and ratios.
    Source: Espeholt et al., 2018, "IMPALA: scalable distributed deep-RL with importance weighted
      actor-learner architectures", eq. 1 and section 4.2.
    Example: `losses.vtrace(ratio, reward, value, next_value, terminated, done, 0.99).advantage`
    """
    check_equal_shapes(
        "vtrace",
        ratio=ratio,
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        done=done,
    )

    def step(ratio, reward, value, next_value, terminated, discount, lambda_):
        error = td_error(value, reward, terminated, discount, next_value)
        decay = discount * lambda_ * jnp.minimum(ratio, clip_trace)
        return decay, jnp.minimum(ratio, clip_ratio) * error

    inputs = (ratio, reward, value, next_value, terminated, discount, lambda_)
    error = reverse_recurrence(step, 0, done, *inputs)
    later = jnp.where(done, 0, _next_step(error))
    one_step = td_error(value, reward, terminated, discount, next_value)
    advantage = jnp.minimum(ratio, clip_ratio) * (one_step + discount * lambda_ * later)
    return VTrace(value + error, advantage)


@check_arguments
def corrected_returns(
    coefficient: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
) -> Array:
    """Multi-step action-value targets, with later TD errors weighted by trace coefficients.

    G[t] = value[t] + sum_{s >= t} discount^(s - t) (prod_{t < i <= s} c[i]) delta[s],
    delta[s] = reward[s] + discount * next_value[s] - value[s], next_value 0 where terminated[s]

    A `coefficient` of lambda gives Q(lambda), lambda * pi(a|s) the tree backup, the ratio
    per-decision importance sampling, and lambda * min(1, ratio) Retrace.

    Args:
      coefficient: [T, ...], c[t] of the action taken at t; the first is not used.
      reward, terminated, done: [T, ...].
      value: [T, ...], Q(s_t, a_t).
      next_value: [T, ...], the expectation of Q(s_{t+1}, .) under the evaluated policy.
      discount: a scalar, [...] or [T, ...].
    Returns: [T, ...].
    Gradients: none are stopped.
    Source: Munos et al., 2016, "Safe and efficient off-policy reinforcement learning", eq. 3 and
      table 1.
    Example: `losses.corrected_returns(
      coefficient, reward, value, next_value, terminated, done, discount=0.99)`
    """
    check_equal_shapes(
        "corrected_returns",
        coefficient=coefficient,
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        done=done,
    )

    # Step t - 1 adds weighted[t] = c[t] * (G[t] - value[t]) to its own TD error.
    def step(coefficient, reward, value, next_value, terminated, discount):
        error = td_error(value, reward, terminated, discount, next_value)
        return discount * coefficient, coefficient * error

    inputs = (coefficient, reward, value, next_value, terminated, discount)
    weighted = reverse_recurrence(step, 0, done, *inputs)
    later = jnp.where(done, 0, _next_step(weighted))
    bootstrap = jnp.where(terminated, 0, next_value) + later
    return reward + discount * bootstrap


@check_arguments
def retrace_returns(
    ratio: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
    lambda_: Array | float = 1.0,
) -> Array:
    """Retrace(lambda): action-value targets that are safe for any behavior policy.

    corrected_returns with coefficient[t] = lambda_ * min(1, ratio[t])

    Args:
      ratio: [T, ...], pi(a_t|s_t) / mu(a_t|s_t), the evaluated policy over the behavior policy.
      reward, terminated, done: [T, ...].
      value: [T, ...], Q(s_t, a_t).
      next_value: [T, ...], the expectation of Q(s_{t+1}, .) under pi.
      discount: a scalar, [...] or [T, ...].
      lambda_: lambda, broadcasts to [T, ...]; 0: one-step targets.
    Returns: [T, ...].
    Gradients: none are stopped.
    Source: Munos et al., 2016, "Safe and efficient off-policy reinforcement learning", eq. 4.
    Example: `losses.retrace_returns(ratio, reward, value, next_value, terminated, done, 0.99)`
    """
    coefficient = lambda_ * jnp.minimum(ratio, 1)
    return corrected_returns(coefficient, reward, value, next_value, terminated, done, discount)


@check_arguments
def q_lambda_returns(
    reward: Array,
    next_q_values: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
    lambda_: Array | float,
    next_action: Array | None = None,
) -> Array:
    """Q(lambda): lambda-returns that bootstrap from the best action.

    lambda_returns with next_value = max_a next_q_values; with `next_action` (Watkins) the trace
    is cut where the next action is not greedy, without it (Peng) never

    Args:
      reward, terminated, done: [T, ...].
      next_q_values: [T, ..., A], of the true successor of each step.
      discount, lambda_: gamma and lambda, broadcast to [T, ...].
      next_action: [T, ...], the action taken in the successor; None: Peng's version.
    Returns: [T, ...].
    Gradients: none are stopped.
    Source: Watkins, 1989, "Learning from delayed rewards"; Peng and Williams, 1996,
      "Incremental multi-step Q-learning".
    Example: `losses.q_lambda_returns(reward, next_q_values, terminated, done, 0.99, lambda_=0.9)`
    """
    best = next_q_values.max(-1)
    if next_action is not None:
        taken = jnp.take_along_axis(next_q_values, next_action[..., None], -1)[..., 0]
        lambda_ = jnp.where(taken == best, lambda_, 0).astype(reward.dtype)
    return lambda_returns(reward, best, terminated, done, discount, lambda_)


@check_arguments
def upgo_returns(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    discount: Array | float,
) -> Array:
    """Upgoing returns: follow the trajectory while it does better than expected, else bootstrap.

    G[t] = reward[t] + discount * (G[t + 1] if Q[t + 1] >= value[t + 1] else value[t + 1]),
    Q[t] = reward[t] + discount * next_value[t]; next_value[t] replaces the bracket at done steps
    and at the last one

    Args:
      reward, value, next_value, terminated, done: [T, ...].
      discount: a scalar, [...] or [T, ...].
    Returns: [T, ...]; subtract `value` for an advantage.
    Gradients: none are stopped; the comparison has none.
    Source: Vinyals et al., 2019, "Grandmaster level in StarCraft II using multi-agent
      reinforcement learning", methods (upgoing policy update).
    Example: `losses.upgo_returns(reward, value, next_value, terminated, done, discount=0.99)`
    """
    check_equal_shapes(
        "upgo_returns",
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        done=done,
    )
    bootstrap = jnp.where(terminated, 0, next_value)

    # Step t - 1 bootstraps from followed[t]: the return or the value at t.
    def step(reward, value, bootstrap, done, discount):
        better = reward + discount * bootstrap >= value
        ended = reward + jnp.where(done, discount * bootstrap, 0)
        return jnp.where(better, discount, 0), jnp.where(better, ended, value)

    final = bootstrap[-1] if len(reward) else 0
    followed = reverse_recurrence(step, final, done, reward, value, bootstrap, done, discount)
    later = jnp.concatenate([followed[1:], bootstrap[-1:]])
    return reward + discount * jnp.where(done, bootstrap, later)
