"""Weighted likelihood losses of answers or tokens, between fine-tuning and policy gradients."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.policies.policy_gradients import importance_ratio, policy_gradient
from jaxrl.losses.tokens.policies import sequence_log_prob

__all__ = ["a_lol", "dft", "iw_sft", "nft"]


@check_arguments
def dft(log_prob: Array) -> Array:
    """Fine-tuning with tokens weighted by their probability, so unlikely ones do not dominate.

    -stop(p) log p

    Args: log_prob: [...], of the target tokens.
    Returns: [...].
    Gradients: those of -p (the log-likelihood's gradient without its factor 1 / p).
    Source: Wu et al., 2025, "On the generalization of SFT: a reinforcement learning perspective
      with reward rectification", eq. 7 to 9.
    Example: `losses.dft(log_prob).mean()`
    """
    return policy_gradient(log_prob, jnp.exp(log_prob))


@check_arguments
def iw_sft(
    log_prob: Array,
    reference_log_prob: Array,
    low: Array | float = 0.0,
    high: Array | float = 16.0,
) -> Array:
    """Fine-tuning on filtered data with importance weights: a tighter bound on the return.

    -stop(clip(p / p_ref, low, high)) log p

    Args:
      log_prob, reference_log_prob: [...], of sequences, from `sequence_log_prob` (if normalized,
        the ratio is per token), or of tokens, with a narrow clip.
      low, high: broadcast to [...].
    Returns: [...].
    Gradients: flow only into `log_prob`, not through the weight.
    Source: Qin and Springenberg, 2025, "Supervised fine tuning on curated data is reinforcement
      learning (and can be improved)"; the clip is that of its published code.
    Example: `losses.iw_sft(log_prob, reference_log_prob).mean()`
    """
    weight = jnp.clip(importance_ratio(log_prob, reference_log_prob), low, high)
    return policy_gradient(log_prob, weight)


@check_arguments
def nft(
    log_prob: Array,
    old_log_prob: Array,
    correct: Array,
    pass_rate: Array,
    epsilon: Array | float,
) -> Array:
    """Negative-aware fine-tuning, which also learns from wrong answers.

    -log R if an answer is correct, -log max((1 - q R) / (1 - q), epsilon) if wrong, R = p / p_old

    The old policy is seen as a mixture of a policy that is always right (with weight q; p is
    trained to become it) and one that is always wrong, whose likelihood ratio is the second
    expression. Weighting each prompt by sqrt((1 - q) / q) makes the gradient at p = p_old GRPO's.

    Args:
      log_prob, old_log_prob: [T, ..., G], of the tokens.
      correct: [..., G], boolean.
      pass_rate: q, the share of correct answers, broadcasts to [..., G].
      epsilon: above 0, the smallest ratio of a wrong answer.
    Returns: [T, ..., G].
    Gradients: flow only into `log_prob`, and straight through the bound `epsilon`.
    Source: Chen et al., 2025, "Bridging supervised learning and reinforcement learning in math
      reasoning", eq. 10.
    Example: `losses.nft(log_prob, old_log_prob, correct, pass_rate, epsilon)`
    """
    old_log_prob, pass_rate = jax.lax.stop_gradient((old_log_prob, pass_rate))
    ratio = importance_ratio(log_prob, old_log_prob)
    # Where no answer is wrong, 1 - q may be 0: the unused branch must not divide by it.
    share = jnp.where(correct | (pass_rate >= 1), 0, pass_rate)
    negative = (1 - share * ratio) / (1 - share)
    still = jax.lax.stop_gradient(negative)
    bounded = jnp.maximum(still, epsilon)
    # The value is log(bounded); `negative - still` is 0 and carries the gradient past the bound.
    negative_log = jnp.log(bounded) + (negative - still) / bounded
    positive_log = jnp.minimum(log_prob - old_log_prob, 60.0)
    return -jnp.where(correct, positive_log, negative_log)


@check_arguments
def a_lol(
    log_prob: Array,
    reference_log_prob: Array,
    advantage: Array,
    clip: Array | float,
    ratio: Literal["sequence", "token", "none"] = "sequence",
    beta: Array | float = 0.0,
    mask: Array | None = None,
) -> Array:
    """Fine-tuning on the answers of a dataset that beat a reference policy's value.

    -max(A, 0) stop(clip(r, 1 - clip, 1 + clip)) log p + beta log(p / p_ref)

    A-LoL: the ratio r = p / p_ref of the sequence; A-LoL seq: of each token; A-LoL ref. free: 1;
    A-LoL KL: 1, with beta above 0.

    Args:
      log_prob, reference_log_prob: [T, ...], of the tokens.
      advantage: [...], the answer's reward minus the reference policy's value of the prompt.
      clip: broadcasts to [...]; infinite: the plain ratio.
      ratio: what the importance ratio is taken of.
      beta: broadcasts to [...].
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [...], one for each sequence (the sum over its tokens).
    Gradients: flow only into `log_prob`, where the mask is true, and not through the ratio.
    Source: Baheti et al., 2024, "Leftover lunch: advantage-based offline reinforcement learning for
      language models", and its published code.
    Example: `losses.a_lol(log_prob, reference_log_prob, advantage, clip)`
    """
    reference_log_prob = jax.lax.stop_gradient(reference_log_prob)
    if mask is not None:  # before the ratio, whose gradient would multiply masked values
        log_prob, reference_log_prob = (
            jnp.where(mask, x, 0) for x in (log_prob, reference_log_prob)
        )
    sequence, reference = (sequence_log_prob(x) for x in (log_prob, reference_log_prob))
    if ratio == "sequence":
        weight = jnp.clip(importance_ratio(sequence, reference), 1 - clip, 1 + clip)
        likelihood = jax.lax.stop_gradient(weight) * sequence
    elif ratio == "token":
        weight = jnp.clip(importance_ratio(log_prob, reference_log_prob), 1 - clip, 1 + clip)
        likelihood = sequence_log_prob(jax.lax.stop_gradient(weight) * log_prob)
    elif ratio == "none":
        likelihood = sequence
    else:
        raise ValueError(f"ratio must be sequence, token or none, not {ratio!r}")
    return policy_gradient(likelihood, jnp.maximum(advantage, 0)) + beta * (sequence - reference)
