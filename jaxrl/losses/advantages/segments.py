"""Credit within a sequence: turns, segments between cutpoints, macro actions, reward streams.

A segment is a run of tokens, known by its number: `segment` [T, ...] holds integers from 0, and a
quantity of segments has them on axis 0, [K, ...], where tokens have time.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

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


def segment_ids(end: Array, number: int = 1) -> Array:
    """The number of each token's segment, from where segments may end.

    segment[t] = floor(sum_{s < t} end[s] / number)

    Args:
      end: [T, ...], boolean: a segment can end after this token (the last token of a turn, every
        n-th token, a cutpoint by `low_probability_mask`).
      number: how many ends a segment holds.
    Returns: [T, ...], integers from 0; a segment ends after its `number`-th end.
    Gradients: none flows.
    Source: Chai et al., 2024, "MA-RLHF: reinforcement learning from human feedback with macro
      actions" (termination); Guo et al., 2025, "Segment policy optimization" (segments with the
      same number of cutpoints).
    Example: `losses.segment_ids(end, number)`
    """
    end = end.astype(jnp.int32)
    return (jnp.cumsum(end, axis=0) - end) // number


def low_probability_mask(log_prob: Array, threshold: Array | float) -> Array:
    """Which tokens were unlikely, so that what is sampled there decides: cutpoints.

    p < threshold

    Segment policy optimization starts segments there, and gives only them the advantage.

    Args:
      log_prob: [...], of the policy that acted.
      threshold: a probability, broadcasts to [...].
    Returns: [...], boolean.
    Gradients: none flows.
    Source: Guo et al., 2025, "Segment policy optimization: effective segment-level credit
      assignment in RL for large language models" (probability mask, cutpoints).
    Example: `losses.low_probability_mask(log_prob, threshold)`
    """
    return jnp.exp(log_prob) < threshold


def segment_sum(x: Array, segment: Array, number: int, mask: Array | None = None) -> Array:
    """Sums over the tokens of each segment: a macro action's reward or log-probability.

    y[k] = sum_{t: segment[t] = k} x[t]

    Of log-probabilities the sums' difference is the log-ratio of whole macro actions, as
    `clipped_surrogate` takes it. `gae` of summed rewards and `segment_mean` values is MA-RLHF's.

    Args:
      x, segment: [T, ...], the same shape; segments of other numbers than 0 to number - 1 are left
        out.
      number: K, how many segments there can be.
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [K, ...]; 0 for segments without a token.
    Gradients: none is stopped.
    Source: Chai et al., 2024, "MA-RLHF: reinforcement learning from human feedback with macro
      actions"; Sutton et al., 1999, "Between MDPs and semi-MDPs".
    Example: `losses.segment_sum(x, segment, number)`
    """
    if mask is not None:
        x = jnp.where(mask, x, 0)
    # A negative index would count from the end: send it beyond the end, where it is dropped.
    flat = (x.shape[0], math.prod(x.shape[1:]))
    index = jnp.where(segment < 0, number, segment).reshape(flat)
    sums = jnp.zeros((number, flat[1]), x.dtype)
    sums = sums.at[index, jnp.arange(flat[1])].add(x.reshape(flat), mode="drop")
    return sums.reshape(number, *x.shape[1:])


def segment_mean(x: Array, segment: Array, number: int, mask: Array | None = None) -> Array:
    """Means over the tokens of each segment: a macro action's value.

    y[k] = mean_{t: segment[t] = k} x[t]

    Args: x, segment: [T, ...]; number, mask: as in `segment_sum`.
    Returns: [K, ...]; 0 for segments without a token.
    Gradients: none is stopped.
    Source: Chai et al., 2024, "MA-RLHF" (equal weights of a macro action's tokens).
    Example: `losses.segment_mean(x, segment, number)`
    """
    size = segment_sum(jnp.ones_like(x), segment, number, mask)
    return segment_sum(x, segment, number, mask) / jnp.maximum(size, 1)


def segment_to_tokens(x: Array, segment: Array) -> Array:
    """Gives each token its segment's quantity, as an advantage of a turn or macro action.

    y[t] = x[segment[t]]

    Args:
      x: [K, ...].
      segment: [T, ...], with the axes of `x` behind the first; numbers outside of 0 to K - 1: no
        segment.
    Returns: [T, ...]; 0 where there is no segment.
    Gradients: none is stopped.
    Source: common usage, e.g. Chai et al., 2024, "MA-RLHF" (tokens share an advantage).
    Example: `losses.segment_to_tokens(x, segment)`
    """
    inside = (segment >= 0) & (segment < x.shape[0])
    if x.shape[0] == 0:
        return jnp.zeros(segment.shape, x.dtype)
    return jnp.where(inside, jnp.take_along_axis(x, jnp.where(inside, segment, 0), axis=0), 0)


def segment_advantage(value: Array, segment: Array) -> Array:
    """SPO's advantage of tokens: how much their segment changed what can be expected.

    A[t] = V[segment[t] + 1] - V[segment[t]]

    Args:
      value: [K + 1, ...], at the boundaries: V[0] of the prompt, ..., last the answer's reward.
      segment: [T, ...], integers from 0 to K - 1; others: no segment.
    Returns: [T, ...]; a sequence's segments sum to V[K] - V[0].
    Gradients: none is stopped.
    Source: Guo et al., 2025, "Segment policy optimization: effective segment-level credit
      assignment in RL for large language models".
    Example: `losses.segment_advantage(value, segment)`
    """
    return segment_to_tokens(value[1:] - value[:-1], segment)


def turn_advantage(
    turn_reward: Array,
    reward: Array,
    weight: Array | float = 1.0,
    mask: Array | None = None,
    normalize: bool = True,
) -> Array:
    """MT-GRPO's advantage of each turn: its own reward's, plus the outcome's.

    A[k] = group_relative(r) + weight * group_relative(turn_reward[k])

    Args:
      turn_reward: [K, ..., G], for what is judged after turn k, as a valid tool call.
      reward: [..., G], of the outcome.
      weight: of the turn's part, broadcasts to [K, ..., G].
      mask: [K, ..., G], true where a turn has a reward of its own (the last has only the outcome);
        None: all. With no such turn this is GRPO.
      normalize: divide by the group's standard deviation (ddof=0, as in `group_relative`).
    Returns: [K, ..., G], for `segment_to_tokens`.
    Gradients: none is stopped.
    Source: Zeng et al., 2025, "Reinforcing multi-turn reasoning in LLM agents via turn-level credit
      assignment".
    Example: `losses.turn_advantage(turn_reward, reward, weight)`
    """
    return group_relative(reward, None, normalize) + weight * group_relative(
        turn_reward, mask, normalize
    )


def step_episode_advantage(
    step_reward: Array,
    reward: Array,
    done: Array,
    discount: Array | float,
    weight: Array | float = 1.0,
    mask: Array | None = None,
) -> Array:
    """UI-S1's advantage of each step: the step's return and the episode's, each against the group.

    A[t] = group_relative(r) + weight * group_relative(R[t]),
    R[t] = sum_k discount^k step_reward[t + k]; the group's deviations have ddof=0

    Args:
      step_reward: [T, ..., G].
      reward: [..., G], of the episode.
      done: [T, ..., G], no later reward counts for this step (the end, or a patched step).
      discount, weight: scalars, or broadcast to [..., G].
      mask: [T, ..., G], true where there is a step; None: everywhere.
    Returns: [T, ..., G]; 0 where the mask is false.
    Gradients: none is stopped.
    Source: Lu et al., 2025, "UI-S1: advancing GUI automation via semi-online reinforcement
      learning".
    Example: `losses.step_episode_advantage(step_reward, reward, done, discount)`
    """
    present = jnp.ones(step_reward.shape, bool) if mask is None else mask
    step_reward = jnp.where(present, step_reward, 0)
    returns = discounted_returns(step_reward, done, jnp.zeros_like(reward), discount)
    advantage = group_relative(reward) + weight * group_relative(returns, present)
    return jnp.where(present, advantage, 0)


def multi_discount_returns(
    reward: Array, discount: Array, done: Array, mask: Array | None = None
) -> Array:
    """Return of several reward streams, each with a discount of its own.

    G[t] = sum_i sum_k discount_i^k reward_i[t + k]

    Args:
      reward: [T, ..., S], S streams: correctness (discount near 1), repetition (smaller), ...
      discount: [S].
      done: [T, ...], ends all streams.
      mask: [T, ...], true where there is a token; None: everywhere. Others give no reward.
    Returns: [T, ...].
    Gradients: none is stopped.
    Source: Yeo et al., 2025, "Demystifying long chain-of-thought reasoning in LLMs" (a discount for
      each type of reward).
    Example: `losses.multi_discount_returns(reward, discount, done)`
    """
    if mask is not None:
        reward = jnp.where(mask[..., None], reward, 0)
    ends = jnp.broadcast_to(done[..., None], reward.shape)
    final_value = jnp.zeros(reward.shape[1:], reward.dtype)
    return discounted_returns(reward, ends, final_value, discount).sum(-1)


def entropy_shaped_advantage(
    advantage: Array, entropy: Array, scale: Array | float, bound: Array | float
) -> Array:
    """Adds a bonus to the advantage of tokens at which the policy was undecided.

    A + min(scale * H, |A| / bound)

    Args:
      advantage: [...].
      entropy: [...], of the policy at the token.
      scale: of the bonus, not negative.
      bound: above 1, so that the bonus never turns an advantage's sign.
    Returns: [...].
    Gradients: none flows into `entropy`.
    Source: Cheng et al., 2025, "Reasoning with exploration: an entropy perspective"; Hao et al.,
      2025, "Exploring superior function calls via reinforcement learning", add such a bonus to
      GRPO's advantage.
    Example: `losses.entropy_shaped_advantage(advantage, entropy, scale, bound)`
    """
    bonus = scale * jax.lax.stop_gradient(entropy)
    return advantage + jnp.minimum(bonus, jnp.abs(advantage) / bound)
