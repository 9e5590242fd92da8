"""Masks and weights of groups and of the samples in a group.

A group, the last axis of [..., G], holds several answers to one prompt, or several agents on one
instance. See also `informative_groups`.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.advantages.groups import _largest, group_relative
from jaxrl.losses.reductions import _full_mask, masked_mean

__all__ = [
    "difficulty_weights",
    "filtration_weights",
    "high_variance_groups",
    "pass_rate_mask",
    "winner_takes_all",
]


@check_arguments
def pass_rate_mask(
    correct: Array, low: Array | float, high: Array | float, mask: Array | None = None
) -> Array:
    """Mask of the tasks that are neither too hard nor too easy, by their share of correct answers.

    low < mean(correct) <= high

    Args:
      correct: [..., G], boolean.
      low, high: broadcast to [...]; (0, 0.25] is STP's "barely provable".
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [...], boolean; false where no answer counts.
    Gradients: none.
    Source: Dong and Ma, 2025, "STP: self-play LLM theorem provers with iterative conjecturing and
      proving"; Chen et al., 2025, "Unlocking the potential of difficulty prior in RL-based
      multimodal reasoning" (offline filter).
    Example: `losses.pass_rate_mask(correct, low, high)`
    """
    allowed = _full_mask(correct, mask)
    rate = masked_mean(correct.astype(float), allowed, axis=-1)
    return (rate > low) & (rate <= high) & allowed.any(-1)


@check_arguments
def high_variance_groups(reward: Array, share: float, mask: Array | None = None) -> Array:
    """Mask of the groups to train on: the share of the batch whose rewards vary most.

    true for the round(share * P) groups, at least one, with the largest std(r) (ddof=0)

    Args:
      reward: [..., P, G], P groups of one batch.
      share: in [0, 1].
      mask: broadcasts to [..., P, G], true where an answer counts; None: all.
    Returns: [..., P], boolean; among equal deviations the first are taken.
    Gradients: none.
    Source: Wang et al., 2025, "RAGEN: understanding self-evolution in LLM agents via multi-turn
      reinforcement learning" (StarPO-S, uncertainty-based filtering).
    Example: `losses.high_variance_groups(reward, share)`
    """
    variance = masked_mean(jnp.square(group_relative(reward, mask, False)), mask, axis=-1)
    order = jnp.argsort(-variance, axis=-1, stable=True)
    rank = jnp.argsort(order, axis=-1, stable=True)
    return rank < max(round(share * reward.shape[-2]), 1)


@check_arguments
def filtration_weights(
    reward: Array,
    kind: Literal["best", "best_and_random", "best_and_worst"],
    mask: Array | None = None,
) -> Array:
    """PF-PPO's weights: train on the answers for which a reward model is most reliable.

    best: only the best answer; best_and_random: 1/2 for the best, 1/2 shared by the others;
    best_and_worst: 1/2 for the best, 1/2 for the worst

    Args:
      reward: [..., G].
      kind: one of the three.
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [..., G], summing to 1 over the answers that count (to 0 where none does); answers
      with equal rewards share a place.
    Gradients: none.
    Source: Zhang et al., 2024, "Policy filtration in RLHF to fine-tune LLM for code generation".
    Example: `losses.filtration_weights(reward, "best_and_worst")`
    """
    reward, allowed = jax.lax.stop_gradient(reward), _full_mask(reward, mask)

    def evenly(chosen: Array) -> Array:
        chosen = (chosen & allowed).astype(reward.dtype)
        return chosen / jnp.maximum(chosen.sum(-1, keepdims=True), 1)

    best = evenly(reward == _largest(reward, allowed)[..., None])
    if kind == "best":
        return best
    if kind == "best_and_worst":
        return (best + evenly(reward == -_largest(-reward, allowed)[..., None])) / 2
    if kind != "best_and_random":
        raise ValueError(f"kind must be best, best_and_random or best_and_worst, not {kind!r}")
    everyone = evenly(allowed)
    number = allowed.sum(-1, keepdims=True)
    others = (number * everyone - best) / jnp.maximum(number - 1, 1).astype(reward.dtype)
    return jnp.where(number > 1, (best + others) / 2, best).astype(reward.dtype)


@check_arguments
def difficulty_weights(
    correct: Array,
    advantage: Array | None = None,
    low: float = 0.4,
    high: float = 1.5,
    middle: float = 0.75,
    slope: float = 10.0,
    mask: Array | None = None,
) -> Array:
    """Weights that favor hard tasks, or hard tasks' successes and easy tasks' failures.

    w(p) = low + (high - low) / (1 + exp(slope (p - middle))), p the group's success rate

    With advantages: w(p) where they are positive, else w(1 - p) (GRPO-LEAD).

    Args:
      correct: [..., G], boolean.
      advantage: [..., G]; None: one weight for the whole group, larger the harder its task.
      low, high: limits of the weight for ever easier and ever harder tasks.
      middle, slope: where and how steeply the weight falls.
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [..., G], a factor for the advantage.
    Gradients: none.
    Source: Zhang and Zuo, 2025, "GRPO-LEAD: a difficulty-aware reinforcement learning approach for
      concise mathematical reasoning"; Chen et al., 2025, "Unlocking the potential of difficulty
      prior in RL-based multimodal reasoning" (one weight for the group; here with GRPO-LEAD's w).
    Example: `losses.difficulty_weights(correct, advantage)`
    """
    dtype = float if advantage is None else advantage.dtype
    rate = masked_mean(correct.astype(dtype), _full_mask(correct, mask), axis=-1)
    rate = jnp.broadcast_to(rate[..., None], correct.shape)
    if advantage is not None:
        rate = jnp.where(jax.lax.stop_gradient(advantage) > 0, rate, 1 - rate)
    return low + (high - low) * jax.nn.sigmoid(slope * (middle - rate))


@check_arguments
def winner_takes_all(reward: Array, mask: Array | None = None) -> Array:
    """Mask of the agent of a population that learns from an instance: only the best.

    a = argmax(r)

    Args:
      reward: [..., G], one for each agent.
      mask: broadcasts to [..., G], true where an agent counts; None: all.
    Returns: [..., G], boolean; among equal rewards the first; false where no agent counts.
    Gradients: none.
    Source: Grinsztajn et al., 2023, "Winner takes it all: training performant RL populations for
      combinatorial optimization" (Poppy).
    Example: `losses.winner_takes_all(reward)`
    """
    best = _full_mask(reward, mask) & (reward == _largest(reward, mask)[..., None])
    return best & (best.cumsum(-1) == 1)
