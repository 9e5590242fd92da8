"""Rewards of answers and tokens: penalties for length, repetition and drift; calibration."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import _full_mask, masked_mean

__all__ = [
    "balance_score",
    "calibrated_reward",
    "clipped_reward",
    "cosine_length_reward",
    "distinct_answers",
    "first_attempt_penalty",
    "kl_penalized_reward",
    "length_penalty",
    "overlong_penalty",
    "repeated_tokens",
    "repetition_rate",
    "self_correction_reward",
]


@check_arguments
def kl_penalized_reward(
    reward: Array,
    log_prob: Array,
    reference_log_prob: Array,
    beta: Array | float,
    mask: Array | None = None,
) -> Array:
    """RLHF's reward per token: the answer's reward at its end, minus a KL penalty everywhere.

    r[t] = -beta (log p - log p_ref)[t], plus R at the last token

    Args:
      reward: R, [...], of the answer.
      log_prob, reference_log_prob: [T, ...], of its tokens.
      beta: a scalar, or broadcasts to [T, ...].
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [T, ...]; 0 where the mask is false.
    Gradients: none flow into the log-probabilities.
    Source: Ziegler et al., 2019, "Fine-tuning language models from human preferences", eq. 2;
      Zheng et al., 2023, "Secrets of RLHF in large language models part I: PPO".
    Example: `losses.kl_penalized_reward(reward, log_prob, reference_log_prob, beta, mask)`
    """
    log_prob, reference_log_prob = jax.lax.stop_gradient((log_prob, reference_log_prob))
    allowed = _full_mask(log_prob, mask)
    from_here = jnp.flip(jnp.cumsum(jnp.flip(allowed, 0), axis=0), 0)
    last = allowed & (from_here == 1)
    penalty = jnp.where(allowed, beta * (log_prob - reference_log_prob), 0)
    return jnp.where(last, reward, 0) - penalty


@check_arguments
def clipped_reward(
    reward: Array, mean: Array | float, deviation: Array | float, clip: Array | float
) -> Array:
    """Reward model's score on a known scale: normalized by running statistics, then clipped.

    clip((r - mean) / deviation, -clip, clip)

    Args:
      reward: [...].
      mean, deviation: of the rewards so far; broadcast to [...].
      clip: broadcasts to [...].
    Returns: [...]; where the deviation is 0, only the mean is subtracted.
    Gradients: none are stopped.
    Source: Zheng et al., 2023, "Secrets of RLHF in large language models part I: PPO", section 5.3
      (score reparameterization).
    Example: `losses.clipped_reward(reward, mean, deviation, clip)`
    """
    deviation = jnp.where(jnp.asarray(deviation) > 0, deviation, 1)
    return jnp.clip((reward - mean) / deviation, -clip, clip).astype(reward.dtype)


@check_arguments
def calibrated_reward(
    reward: Array, baseline_reward: Array, satisfied: Array | bool = True
) -> Array:
    """Reward comparable across prompts: the probability of beating a baseline answer.

    sigmoid(r - r_baseline) if all constraints are satisfied, else 0

    Args:
      reward: [...].
      baseline_reward: [...], of the starting policy's or a dataset's answer to the same prompt.
      satisfied: boolean, broadcasts to [...], true where no judge found a violation.
    Returns: [...], in [0, 1], the reward of `crpg`.
    Gradients: none are stopped.
    Source: Xu et al., 2024, "The perfect blend: redefining RLHF with mixture of judges", eq. 5 and
      8.
    Example: `losses.calibrated_reward(reward, baseline_reward, satisfied)`
    """
    return jnp.where(satisfied, jax.nn.sigmoid(reward - baseline_reward), 0)


@check_arguments
def self_correction_reward(reward: Array, scale: Array | float) -> Array:
    """SCoRe's reward of each attempt, with a bonus for improving on the previous attempt.

    r[k] + scale (r[k] - r[k - 1]); r[0] for the first attempt

    Args:
      reward: [K, ...], of the attempts.
      scale: alpha, above 1 in the paper, broadcasts to [...].
    Returns: [K, ...].
    Gradients: none are stopped.
    Source: Kumar et al., 2024, "Training language models to self-correct via reinforcement
      learning", section 5.2 (stage II).
    Example: `losses.self_correction_reward(reward, scale)`
    """
    progress = jnp.concatenate([jnp.zeros_like(reward[:1]), reward[1:] - reward[:-1]])
    return reward + scale * progress


@check_arguments
def first_attempt_penalty(
    reward: Array, log_prob: Array, reference_log_prob: Array, beta: Array | float
) -> Array:
    """SCoRe's first-stage reward: the second attempt's, with the first kept near a reference.

    r_2 - beta (log p(y_1) - log p_ref(y_1))

    With REINFORCE over both attempts, its expected gradient is that of
    E[r_2] - beta KL(p(y_1) || p_ref(y_1)).

    Args:
      reward: [...], of the second attempt.
      log_prob, reference_log_prob: [...], of the whole first attempt.
      beta: broadcasts to [...].
    Returns: [...], a reward for the whole episode.
    Gradients: none flow into the log-probabilities.
    Source: Kumar et al., 2024, "Training language models to self-correct via reinforcement
      learning", section 5.1 (stage I).
    Example: `losses.first_attempt_penalty(reward, log_prob, reference_log_prob, beta)`
    """
    return reward - beta * jax.lax.stop_gradient(log_prob - reference_log_prob)


@check_arguments
def cosine_length_reward(
    correct: Array,
    length: Array,
    limit: Array | float,
    correct_ends: tuple[float, float] = (2.0, 1.0),
    wrong_ends: tuple[float, float] = (-10.0, 0.0),
    exceeded: float = -10.0,
) -> Array:
    """Reward by length: short correct answers earn more, and so do long wrong ones.

    e_1 + (e_0 - e_1) (1 + cos(pi length / limit)) / 2, with (e_0, e_1) the values at length 0 and
    at the limit, one pair for correct and one for wrong answers; `exceeded` from the limit on

    Args:
      correct: [...], boolean.
      length: [...], tokens of the answer.
      limit: the longest answer allowed, broadcasts to [...].
      correct_ends, wrong_ends: rewards of an empty answer and of a longest one.
      exceeded: the reward of an answer that did not end.
    Returns: [...], in the precision of `length` (the default precision if it holds integers).
    Gradients: none are stopped.
    Source: Yeo et al., 2025, "Demystifying long chain-of-thought reasoning in LLMs", appendix C.1.
    Example: `losses.cosine_length_reward(correct, length, limit)`
    """
    progress = jnp.clip(length / limit, 0, 1)
    start, end = (jnp.where(correct, x, y) for x, y in zip(correct_ends, wrong_ends, strict=True))
    reward = end + 0.5 * (start - end) * (1 + jnp.cos(math.pi * progress))
    return jnp.where(length < limit, reward, exceeded).astype(progress.dtype)


@check_arguments
def length_penalty(correct: Array, length: Array, mask: Array | None = None) -> Array:
    """Kimi's length reward: a group's short answers gain, long ones lose, wrong ones never gain.

    l = 1/2 - (length - min) / (max - min) for a correct answer, min(l, 0) for a wrong one

    Args:
      correct: [..., G], boolean.
      length: [..., G], tokens of the answers.
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [..., G], in [-1/2, 1/2], to add to the reward; 0 where the mask is false and in
      groups whose answers are equally long.
    Gradients: none.
    Source: Kimi team, 2025, "Kimi k1.5: scaling reinforcement learning with LLMs", section 2.3.3.
    Example: `losses.length_penalty(correct, length)`
    """
    length = jax.lax.stop_gradient(length)
    dtype = length.dtype if jnp.issubdtype(length.dtype, jnp.floating) else float
    length = length.astype(dtype)
    allowed = _full_mask(length, mask)
    shortest = jnp.where(allowed, length, jnp.inf).min(-1, keepdims=True)
    longest = jnp.where(allowed, length, -jnp.inf).max(-1, keepdims=True)
    varies = allowed & (longest > shortest)
    spread = jnp.where(varies, longest - shortest, 1)
    gain = jnp.where(varies, 0.5 - (length - jnp.where(varies, shortest, 0)) / spread, 0)
    return jnp.where(correct, gain, jnp.minimum(gain, 0))


@check_arguments
def overlong_penalty(length: Array, limit: Array | float, margin: Array | float) -> Array:
    """DAPO's soft penalty on answers that come close to the maximum length.

    -clip((length - (limit - margin)) / margin, 0, 1)

    Args:
      length: [...], tokens of the answer.
      limit: the longest answer allowed, broadcasts to [...].
      margin: how far before the limit the penalty starts, broadcasts to [...].
    Returns: [...], in [-1, 0], to add to the reward.
    Gradients: none are stopped.
    Source: Yu et al., 2025, "DAPO: an open-source LLM reinforcement learning system at scale",
      section 3.4.
    Example: `losses.overlong_penalty(length, limit, margin)`
    """
    return -jnp.clip((length - (limit - margin)) / margin, 0, 1)


def _repeated_ngrams(token: Array, size: int, mask: Array | None) -> tuple[Array, Array]:
    """Return two masks [T - size + 1, ...]: where a repeated n-gram begins, and where any does."""
    allowed = _full_mask(token, mask)
    starts = token.shape[0] - size + 1
    grams = [token[i : i + starts] for i in range(size)]
    whole = jnp.stack([allowed[i : i + starts] for i in range(size)]).all(0)
    # A stable sort puts equal n-grams side by side in order of time, and those with gaps last.
    order = jnp.lexsort([*grams, ~whole], axis=0)
    same = jnp.stack([jnp.take_along_axis(x, order, 0) for x in grams])
    repeats = (same[:, 1:] == same[:, :-1]).all(0)
    repeats = jnp.concatenate([jnp.zeros_like(repeats[:1]), repeats])
    return whole & jnp.take_along_axis(repeats, jnp.argsort(order, axis=0), 0), whole


@check_arguments
def repeated_tokens(token: Array, size: int, mask: Array | None = None) -> Array:
    """Mask of the tokens that repeat an n-gram that the answer already contained.

    true where some n-gram that covers the token equals one that began earlier in the same answer

    For a dense penalty, give each of them a negative reward with a discount of its own (see
    `multi_discount_returns`).

    Args:
      token: [T, ...], integers.
      size: n, at least 1.
      mask: broadcasts to [T, ...], true where there is a token; None: everywhere.
    Returns: [T, ...], boolean.
    Gradients: none.
    Source: Yeo et al., 2025, "Demystifying long chain-of-thought reasoning in LLMs", appendix C.2.
    Example: `losses.repeated_tokens(token, size, mask)`
    """
    covered = jnp.zeros(token.shape, bool)
    starts = token.shape[0] - size + 1
    if starts < 1:
        return covered
    repeated, _ = _repeated_ngrams(token, size, mask)
    for i in range(size):
        covered = covered.at[i : i + starts].max(repeated)
    return covered


@check_arguments
def repetition_rate(token: Array, size: int, mask: Array | None = None) -> Array:
    """Fraction of an answer's n-grams that it already contained.

    1 - distinct n-grams / n-grams

    Args:
      token: [T, ...], integers.
      size: n, at least 1.
      mask: broadcasts to [T, ...], true where there is a token; None: everywhere.
    Returns: [...], in [0, 1), in the default precision; 0 for answers shorter than n.
    Gradients: none.
    Source: Yeo et al., 2025, "Demystifying long chain-of-thought reasoning in LLMs" (the code).
    Example: `losses.repetition_rate(token, size, mask)`
    """
    if token.shape[0] < size:
        return jnp.zeros(token.shape[1:])
    repeated, whole = _repeated_ngrams(token, size, mask)
    return masked_mean(repeated.astype(float), whole, axis=0)


@check_arguments
def distinct_answers(token: Array, mask: Array | None = None) -> Array:
    """Mask of the answers of a group that no earlier one of it equals, to count distinct ones.

    true where some token differs from that of every earlier answer

    Args:
      token: [T, ..., G], integers.
      mask: broadcasts to [T, ..., G], true where there is a token; None: everywhere.
    Returns: [..., G], boolean.
    Gradients: none.
    Source: common usage; Zeng et al., 2025, "B-STaR: monitoring and balancing exploration and
      exploitation in self-taught reasoners", counts distinct correct answers.
    Example: `losses.distinct_answers(token, mask).sum(-1)`
    """
    allowed = _full_mask(token, mask)
    shown = jnp.where(allowed, token, 0)
    alike = (shown[..., :, None] == shown[..., None, :]) & (
        allowed[..., :, None] == allowed[..., None, :]
    )
    group = token.shape[-1]
    earlier = jnp.arange(group) < jnp.arange(group)[:, None]
    return ~(alike.all(0) & earlier).any(-1)


@check_arguments
def balance_score(good: Array, selected: Array, target: Array | float) -> Array:
    """B-STaR's score of a sampling configuration: enough good answers and few bad ones.

    min(good / target, 1) good / selected

    Args:
      good: [...], number of distinct correct answers selected for a prompt.
      selected: [...], number of answers selected.
      target: how many good answers are enough, above 0.
    Returns: [...], in [0, 1]; 0 where nothing was selected. The mean over prompts is the score.
    Gradients: none are stopped.
    Source: Zeng et al., 2025, "B-STaR: monitoring and balancing exploration and exploitation in
      self-taught reasoners".
    Example: `losses.balance_score(good, selected, target)`
    """
    precision = jnp.where(selected > 0, good / jnp.where(selected > 0, selected, 1), 0)
    return jnp.minimum(good / target, 1) * precision
