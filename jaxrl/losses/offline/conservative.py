"""Q-values learned from a dataset alone, kept low where it has nothing to say: CQL, BCQ, ICQ, IQL.

Implicit Q-learning needs no losses of its own but one: its value's is `expectile_error` to the
target critic's Q-value of the dataset's action, its critic's target is `td_target` with that
value, its policy's loss is `awr` (with a maximum of 100).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array
from jaxrl.losses.reductions import _allowed, at_action
from jaxrl.losses.values.errors_and_targets import td_target
from jaxrl.losses.values.soft_q import soft_value

__all__ = ["bcq_mask", "cql", "cql_sampled", "icq_target"]


def cql(q_values: Array, action: Array, temperature: Array | float = 1.0) -> Array:
    """Conservative Q-learning's penalty: how far a soft maximum lies above the data's action.

    temperature * log sum_a exp(q_values[a] / temperature) - q_values[action]

    Args:
      q_values: [..., A]; -inf where an action cannot be taken.
      action: [...], integers, the dataset's.
      temperature: a positive scalar.
    Returns: [...], not negative; times a weight it is added to the critic's loss.
    Gradients: none is stopped.
    Source: Kumar et al., 2020, "Conservative Q-learning for offline reinforcement learning", eq. 4.
    Example: `losses.cql(q_values, action).mean()`
    """
    return soft_value(q_values, temperature) - at_action(q_values, action)


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
      sampled_q_values, sampled_log_prob: [..., M], of sampled actions (as a rule some uniform ones,
        some of the policy's here and some of its next state's) and the log-density of each.
      temperature: a positive scalar.
    Returns: [...].
    Gradients: none flows into `sampled_log_prob`. Published code sums over samples where this
      takes their mean: a constant, which matters only to a multiplier's threshold.
    Source: Kumar et al., 2020, "Conservative Q-learning for offline reinforcement learning",
      appendix F.
    Example: `losses.cql_sampled(q_value, sampled_q_values, sampled_log_prob).mean()`
    """
    sampled_log_prob = jax.lax.stop_gradient(sampled_log_prob)
    total = jax.nn.logsumexp(sampled_q_values / temperature - sampled_log_prob, axis=-1)
    return temperature * (total - math.log(sampled_q_values.shape[-1])) - q_value


def bcq_mask(logits: Array, threshold: Array | float = 0.3) -> Array:
    """Actions that discrete BCQ allows: those that a model of the data finds likely enough.

    log p(a) - max_b log p(b) > log threshold, p = softmax(logits)

    Mask Q-values with it, `jnp.where(bcq_mask(logits), q_values, -jnp.inf)`, to act and to choose
    the next action of `double_q_target`.

    Args:
      logits: [..., A], of a model of the data's actions, trained by cloning; -inf where an action
        cannot be taken.
      threshold: tau in [0, 1), broadcasts to [...]; 0: all actions that are possible (Q-learning);
        toward 1 only the likeliest (cloning).
    Returns: bool [..., A]; the likeliest action is always allowed.
    Gradients: none flows: this is a mask.
    Source: Fujimoto et al., 2019, "Benchmarking batch deep reinforcement learning algorithms".
    Example: `losses.bcq_mask(logits, threshold=0.3)`
    """
    share = jnp.exp(logits - logits.max(-1, keepdims=True))
    return share > jnp.asarray(threshold, share.dtype)[..., None]


def icq_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_value: Array,
    temperature: Array | float,
    highest: Array | float = math.inf,
    mask: Array | None = None,
) -> Array:
    """Implicit constraint Q-learning's target: Sarsa on the data, its better next actions more.

    reward + discount * min(N softmax(next_q_values / temperature), highest) * next_q_value, the
    softmax over the N elements of the batch

    Only the data's own actions are evaluated. The weight stands for the ratio of the policy
    proportional to mu exp(Q / temperature) and the data's policy mu. N and the softmax are over
    the elements that count and do not end.

    Args:
      reward, terminated: [..., N], of a batch (last).
      discount: gamma, broadcasts to [..., N].
      next_q_value: [..., N], the target critic's, of the next action in the data.
      temperature: alpha, a positive scalar; infinite: Sarsa.
      highest: where the weight is cut: 1 in the published code.
      mask: [..., N], true where an element counts in the softmax; None: everywhere.
    Returns: [..., N]; the reward alone where the mask is false.
    Gradients: none.
    Source: Yang et al., 2021, "Believe what you see: implicit constraint approach for offline
      multi-agent reinforcement learning" (ICQ), and its published code.
    Example: `losses.icq_target(reward, terminated, discount, next_q_value, temperature=100.0)`
    """
    allowed = _allowed(next_q_value, mask) & ~terminated.astype(bool)
    next_q_value = jnp.where(allowed, next_q_value, 0)
    share = jax.nn.softmax(next_q_value / temperature, where=allowed)
    weight = jnp.minimum(allowed.sum(-1, keepdims=True) * share, highest)
    next_value = jnp.where(allowed, weight * next_q_value, 0)
    return td_target(reward, terminated, discount, next_value.astype(reward.dtype))
