"""Q-learning from a dataset alone, pessimistic where it has no data: CQL, BCQ, ICQ, IQL.

Implicit Q-learning needs only one loss of its own, that of its value: `expectile_error` toward
the target critic's Q-value of the dataset's action. Its critic's target is `td_target` with that
value, and its policy's loss is `awr` (with a maximum of 100).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import _full_mask, at_action
from jaxrl.losses.values.errors_and_targets import td_target
from jaxrl.losses.values.soft_q import soft_value

__all__ = ["bcq_mask", "bcq_target", "cql", "cql_sampled", "icq_target"]


@check_arguments
def cql(q_values: Array, action: Array, temperature: Array | float = 1.0) -> Array:
    """Conservative Q-learning's penalty: a soft maximum of Q minus Q of the data's action.

    temperature * log sum_a exp(q_values[a] / temperature) - q_values[action]

    Args:
      q_values: [..., A]; -inf where an action cannot be taken.
      action: [...], integers, the dataset's.
      temperature: a positive scalar.
    Returns: [...], nonnegative, to add to the critic's loss with a weight.
    Gradients: none are stopped.
    Source: Kumar et al., 2020, "Conservative Q-learning for offline reinforcement learning", eq. 4.
    Example: `losses.cql(q_values, action).mean()`
    """
    return soft_value(q_values, temperature) - at_action(q_values, action)


@check_arguments
def cql_sampled(
    q_value: Array,
    sampled_q_values: Array,
    sampled_log_prob: Array,
    temperature: Array | float = 1.0,
) -> Array:
    """Conservative Q-learning's penalty for continuous actions, from samples of known density.

    temperature * log mean_m exp(sampled_q_values[m] / temperature - sampled_log_prob[m]) - q_value

    Args:
      q_value: [...], of the dataset's action.
      sampled_q_values, sampled_log_prob: [..., M], Q-values and log-densities of sampled actions
        (usually some uniform, some of the policy here and some of the policy in the next state).
      temperature: a positive scalar.
    Returns: [...].
    Gradients: none flow into `sampled_log_prob`. Published code sums over samples instead of
      taking their mean: the difference is a constant, which only affects a multiplier's threshold.
    Source: Kumar et al., 2020, "Conservative Q-learning for offline reinforcement learning",
      appendix F.
    Example: `losses.cql_sampled(q_value, sampled_q_values, sampled_log_prob).mean()`
    """
    sampled_log_prob = jax.lax.stop_gradient(sampled_log_prob)
    total = jax.nn.logsumexp(sampled_q_values / temperature - sampled_log_prob, axis=-1)
    return temperature * (total - math.log(sampled_q_values.shape[-1])) - q_value


@check_arguments
def bcq_mask(logits: Array, threshold: Array | float = 0.3) -> Array:
    """Mask of the actions allowed by discrete BCQ: those likely under a model of the data.

    log p(a) - max_b log p(b) > log threshold, p = softmax(logits)

    Use it to mask Q-values, `jnp.where(bcq_mask(logits), q_values, -jnp.inf)`, for acting and for
    choosing the next action of `double_q_target`.

    Args:
      logits: [..., A], of a model of the data's actions, trained by cloning; -inf where an action
        cannot be taken.
      threshold: tau in [0, 1), broadcasts to [...]; 0: all possible actions (Q-learning); toward 1
        only the likeliest (cloning).
    Returns: bool [..., A]; the likeliest action is always allowed.
    Gradients: none: this is a mask.
    Source: Fujimoto et al., 2019, "Benchmarking batch deep reinforcement learning algorithms".
    Example: `losses.bcq_mask(logits, threshold=0.3)`
    """
    share = jnp.exp(logits - logits.max(-1, keepdims=True))
    return share > jnp.asarray(threshold, share.dtype)[..., None]


@check_arguments
def bcq_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_values: Array,
    minimum_weight: Array | float = 0.75,
) -> Array:
    """Batch-constrained Q-learning's target: the best of some actions that are like the data's.

    reward + discount * max_n (w min_e next_q_values[n, e] + (1 - w) max_e next_q_values[n, e]),
    w = minimum_weight; the second term is 0 where terminated

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., N, E], the target critics' values of N next actions, drawn from a model
        of the data's actions.
      minimum_weight: lambda, broadcasts to [..., N]; 1: clipped double Q-learning, 0.5 with two
        critics: their mean.
    Returns: [...].
    Gradients: none.
    Source: Fujimoto et al., 2019, "Off-policy deep reinforcement learning without exploration",
      algorithm 1.
    Example: `losses.bcq_target(reward, terminated, discount, next_q_values)`
    """
    least, most = next_q_values.min(-1), next_q_values.max(-1)
    soft = minimum_weight * least + (1 - minimum_weight) * most
    return td_target(reward, terminated, discount, soft.max(-1).astype(reward.dtype))


@check_arguments
def icq_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_value: Array,
    temperature: Array | float,
    highest: Array | float = math.inf,
    mask: Array | None = None,
) -> Array:
    """Implicit constraint Q-learning's target: Sarsa on the data, weighted to good next actions.

    reward + discount * min(N softmax(next_q_values / temperature), highest) * next_q_value, the
    softmax over the N elements of the batch

    Only the data's own actions are evaluated. The weight approximates the ratio of the policy
    proportional to mu exp(Q / temperature) to the data's policy mu. N and the softmax cover the
    elements that count and are not terminal.

    Args:
      reward, terminated: [..., N], of a batch (last).
      discount: gamma, broadcasts to [..., N].
      next_q_value: [..., N], the target critic's, of the next action in the data.
      temperature: alpha, a positive scalar; infinite: Sarsa.
      highest: upper bound on the weight; 1 in the published code.
      mask: [..., N], true where an element counts in the softmax; None: everywhere.
    Returns: [..., N]; the reward alone where the mask is false.
    Gradients: none.
    Source: Yang et al., 2021, "Believe what you see: implicit constraint approach for offline
      multi-agent reinforcement learning" (ICQ), and its published code.
    Example: `losses.icq_target(reward, terminated, discount, next_q_value, temperature=100.0)`
    """
    allowed = _full_mask(next_q_value, mask) & ~terminated.astype(bool)
    next_q_value = jnp.where(allowed, next_q_value, 0)
    share = jax.nn.softmax(next_q_value / temperature, where=allowed)
    weight = jnp.minimum(allowed.sum(-1, keepdims=True) * share, highest)
    next_value = jnp.where(allowed, weight * next_q_value, 0)
    return td_target(reward, terminated, discount, next_value.astype(reward.dtype))
