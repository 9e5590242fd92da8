"""Weights, masks and penalties for single tokens: which may move, and how much."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import categorical_entropy
from jaxrl.losses.policies.policy_gradients import importance_ratio
from jaxrl.losses.reductions import _full_mask, masked_mean

__all__ = [
    "covariance_clip_mask",
    "critical_token_weight",
    "kl_cov",
    "nlpo_mask",
    "token_covariance",
]


@check_arguments
def critical_token_weight(reference_logits: Array, exponent: Array | float) -> Array:
    """Weight of a token's KL penalty, low where the reference policy is uncertain.

    (1 - H(p_ref) / log A)^exponent, the normalized negentropy

    Args:
      reference_logits: [..., A], of the frozen reference policy; -inf where impossible.
      exponent: above 0, broadcasts to [...]; 0: 1 everywhere, the usual penalty.
    Returns: [...], in [0, 1]: a factor for the token's divergence.
    Gradients: none.
    Source: Vassoyan et al., 2025, "Ignore the KL penalty! Boosting exploration on critical tokens
      to enhance RL fine-tuning", eq. 1 and 2.
    Example: `losses.critical_token_weight(reference_logits, exponent)`
    """
    reference_logits = jax.lax.stop_gradient(reference_logits)
    largest = max(math.log(reference_logits.shape[-1]), 1e-6)  # a single token is always certain
    certainty = jnp.clip(1 - categorical_entropy(reference_logits) / largest, 0, 1)
    return jnp.power(certainty, exponent).astype(reference_logits.dtype)


@check_arguments
def token_covariance(log_prob: Array, advantage: Array, mask: Array | None = None) -> Array:
    """Contribution of each token to the covariance that drives the policy's entropy down.

    (log p - mean(log p)) (A - mean(A)), means over all tokens of the batch

    Args:
      log_prob: [T, ...].
      advantage: broadcasts to [T, ...].
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [T, ...]; 0 where the mask is false.
    Gradients: none are stopped.
    Source: Cui et al., 2025, "The entropy mechanism of reinforcement learning for reasoning
      language models".
    Example: `losses.token_covariance(log_prob, advantage, mask)`
    """
    advantage = jnp.broadcast_to(advantage, log_prob.shape)
    if mask is not None:
        log_prob, advantage = (jnp.where(mask, x, 0) for x in (log_prob, advantage))
    centered = [x - masked_mean(x, mask) for x in (log_prob, advantage)]
    covariance = centered[0] * centered[1]
    return covariance if mask is None else jnp.where(mask, covariance, 0)


def _smallest(score: Array, eligible: Array, number: Array) -> Array:
    """The `number` eligible elements with the smallest scores, over all axes."""
    order = jnp.argsort(jnp.where(eligible, score, jnp.inf), axis=None, stable=True)
    rank = jnp.argsort(order).reshape(score.shape)
    return eligible & (rank < number)


def _token_count(share: Array | float, allowed: Array) -> Array:
    return jnp.maximum(jnp.floor(share * allowed.sum()), 1)


@check_arguments
def covariance_clip_mask(
    log_prob: Array,
    advantage: Array,
    noise: Array,
    share: Array | float,
    low: Array | float,
    high: Array | float,
    mask: Array | None = None,
    eligible_mask: Array | None = None,
) -> Array:
    """Mask of the tokens that keep their gradient; some that cost much entropy lose it.

    false for floor(share * tokens), at least one, of the eligible tokens with
    low < `token_covariance` < high: those with the smallest noise

    Args:
      log_prob: [T, ...].
      advantage: broadcasts to [T, ...].
      noise: [T, ...], uniform, chooses among the tokens; only its order matters.
      share: the fraction of all tokens that lose their gradient.
      low, high: scalars.
      mask: broadcasts to [T, ...], true where a token counts; None: all.
      eligible_mask: broadcasts to [T, ...], true where a token may lose its gradient, as those that
        PPO's clip does not stop anyway; None: all.
    Returns: [T, ...], boolean; false where the mask is false.
    Gradients: none.
    Source: Cui et al., 2025, "The entropy mechanism of reinforcement learning for reasoning
      language models" (Clip-Cov); used for self-imitation by Qin et al., 2025, "Learn the ropes,
      then trust the wins" (SPEAR).
    Example: `losses.covariance_clip_mask(log_prob, advantage, noise, share, low, high)`
    """
    covariance = token_covariance(log_prob, advantage, mask)
    allowed = _full_mask(covariance, mask)
    chosen = (
        allowed & (covariance > low) & (covariance < high) & _full_mask(covariance, eligible_mask)
    )
    return allowed & ~_smallest(noise, chosen, _token_count(share, allowed))


@check_arguments
def kl_cov(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    share: Array | float,
    beta: Array | float,
    mask: Array | None = None,
) -> Array:
    """Policy gradient with a penalty on the few tokens that cost the most entropy.

    -r A, plus beta |log r| for the floor(share * tokens) tokens, at least one, with the largest
    `token_covariance`, r = importance_ratio(log_prob, old_log_prob)

    Args:
      log_prob, old_log_prob: [T, ...].
      advantage: broadcasts to [T, ...].
      share: the fraction of all tokens that are penalized.
      beta: the penalty's weight, a scalar.
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [T, ...]; 0 where the mask is false.
    Gradients: flow only into `log_prob`, where the mask is true.
    Source: Cui et al., 2025, "The entropy mechanism of reinforcement learning for reasoning
      language models" (KL-Cov), and its published code.
    Example: `losses.kl_cov(log_prob, old_log_prob, advantage, share, beta, mask)`
    """
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    advantage = jnp.broadcast_to(advantage, log_prob.shape)
    allowed = _full_mask(log_prob, mask)
    log_prob, old_log_prob, advantage = (
        jnp.where(allowed, x, 0) for x in (log_prob, old_log_prob, advantage)
    )
    covariance = token_covariance(jax.lax.stop_gradient(log_prob), advantage, allowed)
    held = _smallest(-covariance, allowed, _token_count(share, allowed))
    penalty = jnp.where(held, beta * jnp.abs(log_prob - old_log_prob), 0)
    return penalty - importance_ratio(log_prob, old_log_prob) * advantage


@check_arguments
def nlpo_mask(logits: Array, top_p: Array | float) -> Array:
    """Mask of the tokens that may be sampled: the likeliest under a masking policy (top-p).

    the smallest set of tokens, likeliest first, whose probabilities sum to at least top_p

    Args:
      logits: [..., A], of the masking policy, an older copy of the policy.
      top_p: in (0, 1], broadcasts to [..., 1].
    Returns: [..., A], boolean; set the policy's logits to -inf where it is false.
    Gradients: none.
    Source: Ramamurthy et al., 2023, "Is reinforcement learning (not) for natural language
      processing: benchmarks, baselines, and building blocks" (NLPO).
    Example: `losses.nlpo_mask(logits, top_p)`
    """
    prob = jax.nn.softmax(logits)
    order = jnp.argsort(-prob, axis=-1, stable=True)
    ordered = jnp.take_along_axis(prob, order, axis=-1)
    likelier = ordered.cumsum(-1) - ordered  # total probability of all likelier tokens
    rank = jnp.argsort(order, axis=-1)
    return jnp.take_along_axis((likelier < top_p) & (ordered > 0), rank, axis=-1)
