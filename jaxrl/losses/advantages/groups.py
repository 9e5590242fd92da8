"""Advantages that compare the samples of a group, and measures of a task from its group.

A group, the last axis of [..., G], holds several answers to one prompt, or several agents on one
instance. An advantage [..., G] broadcasts over the tokens of its answer, [T, ..., G].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import _full_mask, masked_mean, standardize

__all__ = [
    "gpg_advantage",
    "group_regret",
    "group_relative",
    "informative_groups",
    "learning_gain",
    "leave_one_out",
    "optimal_baseline",
    "pass_at_k",
    "pass_at_k_advantage",
    "role_baseline_update",
    "role_conditioned_advantage",
]


def _largest(x: Array, mask: Array | None) -> Array:
    """Return the largest element that counts, 0 where none does."""
    x, allowed = jnp.asarray(x), _full_mask(x, mask)  # NumPy's integers are of 64 bits
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jnp.where(allowed.any(-1), jnp.where(allowed, x, lowest).max(-1), 0)


@check_arguments
def group_relative(
    reward: Array,
    mask: Array | None = None,
    normalize: bool = True,
    epsilon: float = 1e-6,
    deviation: str = "population",
) -> Array:
    """GRPO's advantage: how much better an answer is than its group.

    (r - mean(r)) / (std(r) + epsilon), or r - mean(r) alone

    Args:
      reward: [..., G].
      mask: broadcasts to [..., G], true where an answer counts; None: all.
      normalize: divide by the group's standard deviation; if false, this is Dr. GRPO's advantage.
      epsilon: added to the deviation, above 0.
      deviation: "population" (ddof=0), or "sample" (ddof=1, as in `torch.std` and so in TRL, verl
        and tunix), sqrt(G / (G - 1)) larger; anything else raises ValueError.
    Returns: [..., G]; 0 where the mask is false, and (up to rounding, if not normalized) where all
      rewards of a group are equal.
    Gradients: none are stopped.
    Source: Shao et al., 2024, "DeepSeekMath", section 4.1.2; Liu et al., 2025, "Understanding
      R1-Zero-like training: a critical perspective" (without the deviation).
    Example: `losses.group_relative(reward)`
    """
    if normalize:
        return standardize(reward, mask, axis=-1, epsilon=epsilon, deviation=deviation)
    allowed = _full_mask(reward, mask)
    mean = masked_mean(reward, allowed, axis=-1)
    return jnp.where(allowed, reward - mean[..., None], 0)


@check_arguments
def leave_one_out(reward: Array, mask: Array | None = None) -> Array:
    """RLOO's advantage: the reward minus the mean reward of the group's other answers.

    r_i - sum_{j != i} r_j / (G - 1) = G / (G - 1) (r_i - mean(r))

    Args:
      reward: [..., G].
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [..., G]; 0 where the mask is false and in groups of one.
    Gradients: none are stopped.
    Source: Kool et al., 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et
      al., 2024, "Back to basics: revisiting REINFORCE style optimization".
    Example: `losses.leave_one_out(reward)`
    """
    number = _full_mask(reward, mask).sum(-1, keepdims=True)
    correction = (number / jnp.maximum(number - 1, 1)).astype(reward.dtype)
    return correction * group_relative(reward, mask, normalize=False)


@check_arguments
def optimal_baseline(reward: Array, length: Array, mask: Array | None = None) -> Array:
    """OPO's advantage: the reward minus the baseline of least variance, a mean by length.

    r_i - sum_j n_j r_j / sum_j n_j

    It is the baseline of least variance if the gradients of tokens are orthogonal and equally long.

    Args:
      reward: [..., G].
      length: tokens of each answer (n), broadcasts to [..., G].
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [..., G]; 0 where the mask is false.
    Gradients: none are stopped.
    Source: Hao et al., 2025, "On-policy RL with optimal reward baseline", arXiv:2505.23585.
    Example: `losses.optimal_baseline(reward, length)`
    """
    allowed = _full_mask(reward, mask)
    weight = jnp.where(allowed, length, 0).astype(reward.dtype)
    total = jnp.where(allowed, weight * reward, 0).sum(-1, keepdims=True)
    baseline = total / jnp.maximum(weight.sum(-1, keepdims=True), 1)
    return jnp.where(allowed, reward - baseline, 0)


@check_arguments
def gpg_advantage(reward: Array, mask: Array | None = None, normalize: bool = False) -> Array:
    """GPG's advantage: reward minus the group's mean, rescaled for groups without a signal.

    alpha (r - mean(r)) / F, alpha = groups / groups whose rewards are not all equal,
    F = 1 or std(r), the population's (ddof=0)

    The loss is `policy_gradient` with this advantage: no clip, no reference policy, no critic.

    Args:
      reward: [..., G]; the leading axes are the groups of one batch.
      mask: broadcasts to [..., G], true where an answer counts; None: all.
      normalize: F is the group's standard deviation, as in `group_relative`.
    Returns: [..., G]; 0 where the mask is false and in groups of equal rewards.
    Gradients: none are stopped.
    Source: Chu et al., 2025, "GPG: a simple and strong reinforcement learning baseline for model
      reasoning". Groups without an answer that counts are not counted in alpha.
    Example: `losses.gpg_advantage(reward)`
    """
    groups = _full_mask(reward, mask).any(-1).sum()
    informative = informative_groups(reward, mask).sum()
    scale = (groups / jnp.maximum(informative, 1)).astype(reward.dtype)
    return scale * group_relative(reward, mask, normalize)


def _all_wrong_probability(wrong: Array, number: Array, k: int) -> Array:
    """Return C(wrong, k) / C(number, k), the chance that k distinct answers are all wrong."""
    i = jnp.arange(k)
    drawn = i < number[..., None]  # if there are fewer than k answers, all are drawn
    still_wrong = jnp.maximum(wrong[..., None] - i, 0) / jnp.maximum(number[..., None] - i, 1)
    return jnp.where(drawn, still_wrong, 1).prod(-1)


def _count_wrong(correct: Array, mask: Array | None) -> tuple[Array, Array]:
    allowed = _full_mask(correct, mask)
    return (allowed & ~correct.astype(bool)).sum(-1), allowed.sum(-1)


@check_arguments
def pass_at_k(correct: Array, k: int, mask: Array | None = None) -> Array:
    """Unbiased estimate of pass@k, the chance that at least one of k answers is correct.

    1 - C(n - c, k) / C(n, k), n answers of which c are correct

    Args:
      correct: [..., G], boolean.
      k: at most G; where fewer answers count, all of them are drawn.
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [...], in the default precision.
    Gradients: none.
    Source: Chen et al., 2021, "Evaluating large language models trained on code", eq. 1.
    Example: `losses.pass_at_k(correct, k)`
    """
    return 1 - _all_wrong_probability(*_count_wrong(correct, mask), k)


@check_arguments
def pass_at_k_advantage(correct: Array, k: int, mask: Array | None = None) -> Array:
    """Advantage for pass@k training: an answer's mean over all sets of k answers containing it.

    (1 - R) / s for a correct answer, (1 - R - C(w - 1, k - 1) / C(n - 1, k - 1)) / s for a wrong
    one, R = 1 - C(w, k) / C(n, k), s = sqrt(R (1 - R)), with w of n answers wrong

    Args:
      correct: [..., G], boolean.
      k: at most G; 1: GRPO's advantage with rewards 0 and 1, s being their deviation (ddof=0).
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [..., G], in the default precision; 0 where the mask is false and R is 0 or 1.
    Gradients: none.
    Source: Chen et al., 2025, "Pass@k training for adaptively balancing exploration and
      exploitation of large reasoning models".
    Example: `losses.pass_at_k_advantage(correct, k)`
    """
    wrong, number = _count_wrong(correct, mask)
    failure = _all_wrong_probability(wrong, number, k)
    variance = failure * (1 - failure)
    others_wrong = _all_wrong_probability(wrong - 1, number - 1, k - 1)
    centered = failure[..., None] - jnp.where(correct, 0, others_wrong[..., None])
    scale = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)), jnp.inf)
    return jnp.where(_full_mask(correct, mask), centered / scale[..., None], 0)


@check_arguments
def group_regret(reward: Array, mask: Array | None = None) -> Array:
    """Gap between the best and the average answer, a measure of how much a task can teach.

    max(r) - mean(r)

    Args:
      reward: [..., G].
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [...], never negative; 0 where nothing counts.
    Gradients: none are stopped.
    Source: Ye et al., 2024, "Scalable reinforcement post-training beyond static human prompts:
      evolving alignment via asymmetric self-play" (eva; among its measures of a prompt's
      informativeness, the one against the average answer).
    Example: `losses.group_regret(reward)`
    """
    return _largest(reward, mask) - masked_mean(reward, _full_mask(reward, mask), axis=-1)


@check_arguments
def informative_groups(reward: Array, mask: Array | None = None) -> Array:
    """Mask of the groups that have a gradient at all: those whose rewards are not all equal.

    max(r) > min(r)

    Args:
      reward: [..., G].
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [...], boolean.
    Gradients: none.
    Source: Yu et al., 2025, "DAPO: an open-source LLM reinforcement learning system at scale",
      section 3.2 (dynamic sampling).
    Example: `losses.informative_groups(reward)`
    """
    return _largest(reward, mask) > -_largest(-reward, mask)


@check_arguments
def learning_gain(
    advantage: Array, mask: Array | None = None, axis: int | tuple[int, ...] | None = None
) -> Array:
    """SEC's measure of how much a batch can teach, the reward of its curriculum's bandit arms.

    mean(|A|)

    Args:
      advantage: [...].
      mask: broadcasts to [...], true where an element counts; None: all.
      axis: the axes to reduce; None: all.
    Returns: the shape without `axis`; 0 where no element counts. With rewards 0 and 1 and
      `group_relative` it is largest at a success rate of 1/2.
    Gradients: none are stopped.
    Source: Chen et al., 2025, "Self-evolving curriculum for LLM reasoning".
    Example: `losses.learning_gain(advantage, mask)`
    """
    counted = advantage if mask is None else jnp.where(mask, advantage, 0)
    return masked_mean(jnp.abs(counted), mask, axis)


@check_arguments
def role_conditioned_advantage(reward: Array, role: Array, baseline: Array) -> Array:
    """SPIRAL's role-conditioned advantage (RAE): the return minus its role's average return.

    A = R - b[role]

    Args:
      reward: [...], an episode's return for one player.
      role: [...], integers from 0 to R - 1, one for each role of each game.
      baseline: [R], from `role_baseline_update`. The authors' code updates it after using it, the
        paper's algorithm 1 before.
    Returns: [...].
    Gradients: none flow into `baseline`.
    Source: Liu et al., 2025, "SPIRAL: self-play on zero-sum games incentivizes reasoning via
      multi-agent multi-turn reinforcement learning".
    Example: `losses.role_conditioned_advantage(reward, role, baseline)`
    """
    return reward - jax.lax.stop_gradient(baseline)[role]


@check_arguments
def role_baseline_update(
    baseline: Array, reward: Array, role: Array, decay: Array | float, mask: Array | None = None
) -> Array:
    """Update the moving averages of returns, one for each role (or arm, or task).

    b[role_n] <- decay * b[role_n] + (1 - decay) * R_n, for each episode n in turn

    Args:
      baseline: [R].
      reward, role: [N], returns and integers from 0 to R - 1.
      decay: in [0, 1], a scalar.
      mask: [N], true where an episode counts; None: all.
    Returns: [R].
    Gradients: none are stopped.
    Source: Liu et al., 2025, "SPIRAL"; the update of Q in Chen et al., 2025,
      "Self-evolving curriculum for LLM reasoning", is the same.
    Example: `losses.role_baseline_update(baseline, reward, role, decay)`
    """

    def step(baseline, episode):
        reward, role, allowed = episode
        gain = jnp.where(allowed, jnp.where(allowed, reward, 0) - baseline[role], 0)
        return baseline.at[role].add(((1 - decay) * gain).astype(baseline.dtype)), None

    return jax.lax.scan(step, baseline, (reward, role, _full_mask(reward, mask)))[0]
