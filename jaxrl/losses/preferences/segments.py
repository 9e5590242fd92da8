"""Policy losses from preferences between segments, by their steps or tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.preferences.pairs import implicit_reward
from jaxrl.losses.preferences.reward_models import bradley_terry
from jaxrl.losses.reductions import masked_mean, masked_sum

__all__ = [
    "cpl",
    "direct_pref_po",
    "t_reg",
]


@check_arguments
def cpl(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    temperature: Array | float,
    discount: float = 1.0,
    bias: float = 1.0,
    chosen_mask: Array | None = None,
    rejected_mask: Array | None = None,
) -> Array:
    """Contrastive preference learning (CPL): prefer the segment with the lower regret.

    bradley_terry(s(chosen), bias * s(rejected)), s = temperature sum_t discount^t log pi(a_t | s_t)

    Args:
      chosen_log_prob, rejected_log_prob: [T, ...] and [T', ...], of each step's action.
      temperature: alpha of the maximum-entropy advantage.
      discount: in [0, 1].
      bias: lambda in (0, 1]; values below 1 favor policies that stay close to the data.
      chosen_mask, rejected_mask: [T, ...] and [T', ...], true where a step counts; None: all.
    Returns: [...].
    Gradients: none are stopped.
    Source: Hejna et al., 2024, "Contrastive preference learning: learning from human feedback
      without RL".
    Example: `losses.cpl(chosen_log_prob, rejected_log_prob, temperature=0.1).mean()`
    """

    def score(log_prob, mask):
        steps = jnp.arange(len(log_prob)).reshape(-1, *[1] * (log_prob.ndim - 1))
        weight = jnp.power(discount, steps).astype(log_prob.dtype)
        kept = log_prob if mask is None else jnp.where(mask, log_prob, 0)
        return temperature * (weight * kept).sum(0)

    return bradley_terry(
        score(chosen_log_prob, chosen_mask), bias * score(rejected_log_prob, rejected_mask)
    )


@check_arguments
def direct_pref_po(
    chosen_distance: Array,
    rejected_distance: Array,
    temperature: Array | float = 1.0,
    bias: float = 1.0,
    chosen_mask: Array | None = None,
    rejected_mask: Array | None = None,
) -> Array:
    """Direct preference-based policy optimization: act closer to the preferred segment's actions.

    -log(exp(-d_w / T) / (exp(-d_w / T) + exp(-bias d_l / T))), d = mean over a segment's steps

    Args:
      chosen_distance, rejected_distance: [T, ...] and [T', ...], of the policy's action from the
        segment's at each step, e.g. a Euclidean norm.
      temperature: T.
      bias: lambda in [0, 1]; values below 1 favor policies that stay close to the data.
      chosen_mask, rejected_mask: [T, ...] and [T', ...], true where a step counts; None: all.
    Returns: [...].
    Gradients: none are stopped.
    Source: An et al., 2023, "Direct preference-based policy optimization without reward modeling",
      and its published code.
    Example: `losses.direct_pref_po(chosen_distance, rejected_distance).mean()`
    """

    def score(distance, mask):
        mask = jnp.ones(distance.shape, bool) if mask is None else mask
        return -masked_mean(distance, mask, 0) / temperature

    return bradley_terry(
        score(chosen_distance, chosen_mask), bias * score(rejected_distance, rejected_mask)
    )


@check_arguments
def t_reg(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    chosen_token_reward: Array,
    rejected_token_reward: Array,
    beta: Array | float,
    weight: float,
    chosen_mask: Array | None = None,
    rejected_mask: Array | None = None,
) -> Array:
    """DPO with token-level regularization (T-REG), from given token rewards.

    dpo + weight * w * (reg(chosen) + reg(rejected)), reg = -beta sum_t token_reward_t log pi(y_t),
    w = sigmoid(implicit reward of rejected - of chosen)

    Args:
      chosen_log_prob, rejected_log_prob: [T, ...] and [T', ...], of each token.
      chosen_reference_log_prob, rejected_reference_log_prob: [T, ...] and [T', ...].
      chosen_token_reward, rejected_token_reward: [T, ...] and [T', ...], e.g. sigmoid(log p_better
        - log p_worse) - 1/2 with the token's probabilities after prompts for a better and for a
        worse text.
      beta: as in `dpo`.
      weight: alpha.
      chosen_mask, rejected_mask: [T, ...] and [T', ...], true where a token counts; None: all.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities, the token rewards or w.
    Source: Zhou et al., 2025, "T-REG: preference optimization with token-level reward
      regularization".
    Example: `losses.t_reg(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, chosen_token_reward, rejected_token_reward, beta=0.1,
      weight=0.25).mean()`
    """

    def both(log_prob, reference_log_prob, token_reward, mask):
        reward = masked_sum(implicit_reward(log_prob, reference_log_prob, beta), mask, 0)
        token_reward = jax.lax.stop_gradient(token_reward)
        if mask is not None:  # before the product: NaN times a gradient of 0 is NaN
            token_reward = jnp.where(mask, token_reward, 0)
        return reward, -masked_sum(beta * token_reward * log_prob, mask, 0)

    chosen, chosen_term = both(
        chosen_log_prob, chosen_reference_log_prob, chosen_token_reward, chosen_mask
    )
    rejected, rejected_term = both(
        rejected_log_prob, rejected_reference_log_prob, rejected_token_reward, rejected_mask
    )
    share = jax.lax.stop_gradient(jax.nn.sigmoid(rejected - chosen))
    return bradley_terry(chosen, rejected) + weight * share * (chosen_term + rejected_term)
