"""Policy losses from the difference of two sequences' rewards, without a critic."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.preferences.pairs import implicit_reward
from jaxrl.losses.reductions import masked_sum

__all__ = [
    "copg",
    "rebel",
    "refuel",
]


@check_arguments
def rebel(
    log_prob: Array,
    other_log_prob: Array,
    old_log_prob: Array,
    other_old_log_prob: Array,
    reward: Array,
    other_reward: Array,
    eta: Array | float,
) -> Array:
    """REBEL's loss: regress differences of rewards on differences of log-ratios.

    ((log(pi(y) / pi_old(y)) - log(pi(y') / pi_old(y'))) / eta - (r(y) - r(y')))^2

    Args:
      log_prob, other_log_prob: [...], of two sequences y, y' for the same prompt.
      old_log_prob, other_old_log_prob: [...], under the previous iteration's policy.
      reward, other_reward: [...]; any score, e.g. a win rate.
      eta: step size of the mirror descent that the minimizer performs.
    Returns: [...].
    Gradients: none flow into the old log-probabilities or the rewards.
    Source: Gao et al., 2024, "REBEL: reinforcement learning via regressing relative rewards",
      algorithm 1.
    Example: `losses.rebel(log_prob, other_log_prob, old_log_prob, other_old_log_prob, reward,
      other_reward, eta=1.0).mean()`
    """
    ratio = implicit_reward(log_prob, old_log_prob, 1)
    other = implicit_reward(other_log_prob, other_old_log_prob, 1)
    return jnp.square((ratio - other) / eta - jax.lax.stop_gradient(reward - other_reward))


@check_arguments
def refuel(
    log_prob: Array,
    other_log_prob: Array,
    old_log_prob: Array,
    other_old_log_prob: Array,
    reward: Array,
    other_reward: Array,
    eta: Array | float,
    mask: Array | None = None,
    other_mask: Array | None = None,
) -> Array:
    """REBEL for conversations (REFUEL): two turns after one prefix, judged by all later rewards.

    rebel(..., sum_t reward_t, sum_t other_reward_t, eta)

    Args:
      log_prob, other_log_prob: [...], of the two turns.
      old_log_prob, other_old_log_prob: [...], under the previous iteration's policy.
      reward, other_reward: [T, ...] and [T', ...], from the first and from the other turn to the
        end.
      eta: step size of the mirror descent that the minimizer performs.
      mask, other_mask: [T, ...] and [T', ...], true where a reward counts; None: everywhere.
    Returns: [...].
    Gradients: none flow into the old log-probabilities or the rewards.
    Source: Gao et al., 2025, "Regressing the relative future: efficient policy optimization for
      multi-turn RLHF", algorithm 1.
    Example: `losses.refuel(log_prob, other_log_prob, old_log_prob, other_old_log_prob, reward,
      other_reward, eta=1.0).mean()`
    """
    to_go, other_to_go = masked_sum(reward, mask, 0), masked_sum(other_reward, other_mask, 0)
    return rebel(
        log_prob, other_log_prob, old_log_prob, other_old_log_prob, to_go, other_to_go, eta
    )


@check_arguments
def copg(
    log_prob: Array,
    other_log_prob: Array,
    reference_log_prob: Array,
    other_reference_log_prob: Array,
    reward: Array,
    other_reward: Array,
    beta: Array | float,
) -> Array:
    """Contrastive policy gradient (CoPG): each of two sequences is the other's baseline.

    -(r(y) - r(y') - beta/2 h) h, h = log(pi(y) / pi_ref(y)) - log(pi(y') / pi_ref(y'))

    Args:
      log_prob, other_log_prob: [...], of two sequences for the same prompt, from any policy.
      reference_log_prob, other_reference_log_prob: [...], under the frozen reference.
      reward, other_reward: [...]; with 1/4 and -1/4 this is beta/2 times `ipo`, minus a constant.
      beta: strength of the pull toward the reference; 0 is allowed.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities or the rewards. The policy's is
      -(R(y) - R(y')) (grad log pi(y) - grad log pi(y')), R = r - beta log(pi / pi_ref).
    Source: Flet-Berliac et al., 2024, "Contrastive policy gradient: aligning LLMs on
      sequence-level scores in a supervised-friendly fashion".
    Example: `losses.copg(log_prob, other_log_prob, reference_log_prob, other_reference_log_prob,
      reward, other_reward, beta=0.1).mean()`
    """
    ratio = implicit_reward(log_prob, reference_log_prob, 1)
    difference = ratio - implicit_reward(other_log_prob, other_reference_log_prob, 1)
    gain = jax.lax.stop_gradient(reward - other_reward)
    return (0.5 * beta * difference - gain) * difference
