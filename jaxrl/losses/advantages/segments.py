"""Credit within a sequence: turns, segments between cutpoints, macro actions, reward streams.

A segment is a numbered run of tokens: `segment` [T, ...] holds each token's segment, an integer
from 0 on. Values of segments, [K, ...], have the segment as axis 0, as tokens have time.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.advantages.groups import group_relative
from jaxrl.losses.advantages.returns import discounted_returns

__all__ = [
    "entropy_shaped_advantage",
    "low_probability_mask",
    "multi_discount_returns",
    "segment_advantage",
    "segment_ids",
    "segment_mean",
    "segment_sum",
    "segment_to_tokens",
    "step_episode_advantage",
    "turn_advantage",
]


@check_arguments
def segment_ids(end: Array, number: int = 1) -> Array:
    """Return the segment number of each token, given where segments may end.

    segment[t] = floor(sum_{s < t} end[s] / number)

    Args:
      end: [T, ...], boolean: a segment can end after this token (the last token of a turn, every
        n-th token, a cutpoint by `low_probability_mask`).
      number: number of ends in a segment.
    Returns: [T, ...], integers from 0; a segment ends after its `number`-th end.
    Gradients: none.
    Source: Chai et al., 2024, "MA-RLHF: reinforcement learning from human feedback with macro
      actions" (termination); Guo et al., 2025, "Segment policy optimization" (segments with the
      same number of cutpoints).
    Example: `losses.segment_ids(end, number)`
    """
    end = end.astype(jnp.int32)
    return (jnp.cumsum(end, axis=0) - end) // number


@check_arguments
def low_probability_mask(log_prob: Array, threshold: Array | float) -> Array:
    """Mask of unlikely tokens (cutpoints), where the sampled token matters most.

    p < threshold

    Segment policy optimization starts segments there and gives the advantage only to these tokens.

    Args:
      log_prob: [...], of the policy that acted.
      threshold: a probability, broadcasts to [...].
    Returns: [...], boolean.
    Gradients: none.
    Source: Guo et al., 2025, "Segment policy optimization: effective segment-level credit
      assignment in RL for large language models" (probability mask, cutpoints).
    Example: `losses.low_probability_mask(log_prob, threshold)`
    """
    return jnp.exp(log_prob) < threshold


@check_arguments
def segment_sum(x: Array, segment: Array, number: int, mask: Array | None = None) -> Array:
    """Sum over the tokens of each segment, e.g. a macro action's reward or log-probability.

    y[k] = sum_{t: segment[t] = k} x[t]

    Sums of log-probabilities give `clipped_surrogate` the ratio of whole macro actions. MA-RLHF
    applies `gae` to summed rewards and `segment_mean` values.

    Args:
      x, segment: [T, ...], the same shape; segment numbers outside 0 to number - 1 are left out.
      number: K, the largest possible number of segments.
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [K, ...]; 0 for segments without a token.
    Gradients: none are stopped.
    Source: Chai et al., 2024, "MA-RLHF: reinforcement learning from human feedback with macro
      actions"; Sutton et al., 1999, "Between MDPs and semi-MDPs".
    Example: `losses.segment_sum(x, segment, number)`
    """
    if mask is not None:
        x = jnp.where(mask, x, 0)
    # A negative index would count from the end: move it beyond the end, where it is dropped.
    flat = (x.shape[0], math.prod(x.shape[1:]))
    index = jnp.where(segment < 0, number, segment).reshape(flat)
    sums = jnp.zeros((number, flat[1]), x.dtype)
    sums = sums.at[index, jnp.arange(flat[1])].add(x.reshape(flat), mode="drop")
    return sums.reshape(number, *x.shape[1:])


@check_arguments
def segment_mean(x: Array, segment: Array, number: int, mask: Array | None = None) -> Array:
    """Mean over the tokens of each segment, e.g. a macro action's value.

    y[k] = mean_{t: segment[t] = k} x[t]

    Args: x, segment: [T, ...]; number, mask: as in `segment_sum`.
    Returns: [K, ...]; 0 for segments without a token.
    Gradients: none are stopped.
    Source: Chai et al., 2024, "MA-RLHF" (equal weights for a macro action's tokens).
    Example: `losses.segment_mean(x, segment, number)`
    """
    size = segment_sum(jnp.ones_like(x), segment, number, mask)
    return segment_sum(x, segment, number, mask) / jnp.maximum(size, 1)


@check_arguments
def segment_to_tokens(x: Array, segment: Array) -> Array:
    """Give each token its segment's value, e.g. the advantage of a turn or macro action.

    y[t] = x[segment[t]]

    Args:
      x: [K, ...].
      segment: [T, ...], with the axes of `x` after the first; numbers outside 0 to K - 1 mean no
        segment.
    Returns: [T, ...]; 0 where there is no segment.
    Gradients: none are stopped.
    Source: common usage, e.g. Chai et al., 2024, "MA-RLHF" (tokens share an advantage).
    Example: `losses.segment_to_tokens(x, segment)`
    """
    inside = (segment >= 0) & (segment < x.shape[0])
    if x.shape[0] == 0:
        return jnp.zeros(segment.shape, x.dtype)
    return jnp.where(inside, jnp.take_along_axis(x, jnp.where(inside, segment, 0), axis=0), 0)


@check_arguments
def segment_advantage(value: Array, segment: Array) -> Array:
    """SPO's advantage of tokens: how much their segment changed the expected reward.

    A[t] = V[segment[t] + 1] - V[segment[t]]

    Args:
      value: [K + 1, ...], at the boundaries: from the prompt, V[0], to the answer's reward, V[K].
      segment: [T, ...], integers from 0 to K - 1; others mean no segment.
    Returns: [T, ...]; over a sequence's segments the advantages sum to V[K] - V[0].
    Gradients: none are stopped.
    Source: Guo et al., 2025, "Segment policy optimization: effective segment-level credit
      assignment in RL for large language models".
    Example: `losses.segment_advantage(value, segment)`
    """
    return segment_to_tokens(value[1:] - value[:-1], segment)


@check_arguments
def turn_advantage(
    turn_reward: Array,
    reward: Array,
    weight: Array | float = 1.0,
    mask: Array | None = None,
    normalize: bool = True,
) -> Array:
    """MT-GRPO's advantage of each turn: that of its own reward plus that of the outcome.

    A[k] = group_relative(r) + weight * group_relative(turn_reward[k])

    Args:
      turn_reward: [K, ..., G], for what can be judged after turn k, e.g. a valid tool call.
      reward: [..., G], of the outcome.
      weight: weight of the turn's part, broadcasts to [K, ..., G].
      mask: [K, ..., G], true where a turn has a reward of its own (the last turn has only the
        outcome); None: all. Without such turns this is GRPO.
      normalize: divide by the group's standard deviation (ddof=0, as in `group_relative`).
    Returns: [K, ..., G], for `segment_to_tokens`.
    Gradients: none are stopped.
    Source: Zeng et al., 2025, "Reinforcing multi-turn reasoning in LLM agents via turn-level credit
      assignment".
    Example: `losses.turn_advantage(turn_reward, reward, weight)`
    """
    return group_relative(reward, None, normalize) + weight * group_relative(
        turn_reward, mask, normalize
    )


@check_arguments
def step_episode_advantage(
    step_reward: Array,
    reward: Array,
    done: Array,
    discount: Array | float,
    weight: Array | float = 1.0,
    mask: Array | None = None,
) -> Array:
    """UI-S1's advantage of each step: group-relative returns of the step and of the episode.

    A[t] = group_relative(r) + weight * group_relative(R[t]),
    R[t] = sum_k discount^k step_reward[t + k]; the group's deviations have ddof=0

    Args:
      step_reward: [T, ..., G].
      reward: [..., G], of the episode.
      done: [T, ..., G], true where no later reward counts for this step (the end, or a patched
        step).
      discount, weight: scalars, or broadcast to [..., G].
      mask: [T, ..., G], true where there is a step; None: everywhere.
    Returns: [T, ..., G]; 0 where the mask is false.
    Gradients: none are stopped.
    Source: Lu et al., 2025, "UI-S1: advancing GUI automation via semi-online reinforcement
      learning".
    Example: `losses.step_episode_advantage(step_reward, reward, done, discount)`
    """
    present = jnp.ones(step_reward.shape, bool) if mask is None else mask
    step_reward = jnp.where(present, step_reward, 0)
    returns = discounted_returns(step_reward, done, jnp.zeros_like(reward), discount)
    advantage = group_relative(reward) + weight * group_relative(returns, present)
    return jnp.where(present, advantage, 0)


@check_arguments
def multi_discount_returns(
    reward: Array, discount: Array, done: Array, mask: Array | None = None
) -> Array:
    """Returns summed over several reward streams, each with its own discount.

    G[t] = sum_i sum_k discount_i^k reward_i[t + k]

    Args:
      reward: [T, ..., S], S streams: correctness (discount near 1), repetition (smaller), ...
      discount: [S].
      done: [T, ...], ends all streams.
      mask: [T, ...], true where there is a token; None: everywhere. Other steps give no reward.
    Returns: [T, ...].
    Gradients: none are stopped.
    Source: Yeo et al., 2025, "Demystifying long chain-of-thought reasoning in LLMs" (a discount for
      each type of reward).
    Example: `losses.multi_discount_returns(reward, discount, done)`
    """
    if mask is not None:
        reward = jnp.where(mask[..., None], reward, 0)
    ends = jnp.broadcast_to(done[..., None], reward.shape)
    final_value = jnp.zeros(reward.shape[1:], reward.dtype)
    return discounted_returns(reward, ends, final_value, discount).sum(-1)


@check_arguments
def entropy_shaped_advantage(
    advantage: Array, entropy: Array, scale: Array | float, bound: Array | float
) -> Array:
    """Add a bonus to the advantage of tokens at which the policy was undecided.

    A + min(scale * H, |A| / bound)

    Args:
      advantage: [...].
      entropy: [...], of the policy at the token.
      scale: scale of the bonus, nonnegative.
      bound: above 1, so that the bonus never flips the sign of an advantage.
    Returns: [...].
    Gradients: none flow into `entropy`.
    Source: Cheng et al., 2025, "Reasoning with exploration: an entropy perspective"; Hao et al.,
      2025, "Exploring superior function calls via reinforcement learning", add such a bonus to
      GRPO's advantage.
    Example: `losses.entropy_shaped_advantage(advantage, entropy, scale, bound)`
    """
    bonus = scale * jax.lax.stop_gradient(entropy)
    return advantage + jnp.minimum(bonus, jnp.abs(advantage) / bound)
