"""Losses that learn rewards from comparisons, and robust rewards from learned ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import gaussian_kl
from jaxrl.losses.reductions import _full_mask, masked_mean, masked_sum

__all__ = [
    "best_of_n_kl",
    "bradley_terry",
    "hierarchical_preference",
    "plackett_luce",
    "reward_smoothness",
    "robust_reward",
    "segment_preference",
    "uncertainty_weighted_reward",
    "variational_preference",
    "win_rate",
]


@check_arguments
def bradley_terry(
    chosen_reward: Array,
    rejected_reward: Array,
    margin: Array | float = 0.0,
    label_smoothing: Array | float = 0.0,
) -> Array:
    """Bradley-Terry loss of a reward model, which should rate the preferred item of a pair higher.

    -(1 - e) log sigmoid(d) - e log sigmoid(-d), d = chosen_reward - rejected_reward - margin

    Args:
      chosen_reward, rejected_reward: [...]; for segments, sums over their steps.
      margin: how much better the chosen item must be, broadcasts to [...].
      label_smoothing: e, probability that the label is wrong, broadcasts to [...]; 0.5 for a tie.
    Returns: [...].
    Gradients: none are stopped.
    Source: Bradley and Terry, 1952, "Rank analysis of incomplete block designs"; Ouyang et al.,
      2022, "Training language models to follow instructions with human feedback", eq. 1; margin:
      Touvron et al., 2023, "Llama 2: open foundation and fine-tuned chat models", eq. 2.
    Example: `losses.bradley_terry(chosen_reward, rejected_reward).mean()`
    """
    distance = chosen_reward - rejected_reward - margin
    right, wrong = jax.nn.log_sigmoid(distance), jax.nn.log_sigmoid(-distance)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


@check_arguments
def segment_preference(
    reward: Array,
    other_reward: Array,
    lapse: float = 0.0,
    mask: Array | None = None,
    other_mask: Array | None = None,
) -> Array:
    """Probability that a person prefers a segment of behavior to another, by summed rewards.

    (1 - lapse) sigmoid(sum_t reward_t - sum_t other_reward_t) + lapse / 2

    Args:
      reward, other_reward: [T, ...] and [T', ...].
      lapse: probability that the person answers at random.
      mask, other_mask: [T, ...] and [T', ...], true where a step counts; None: everywhere.
    Returns: [...], probability that the first segment is preferred.
    Gradients: none are stopped.
    Source: Christiano et al., 2017, "Deep reinforcement learning from human preferences", eq. 1
      and section 2.2.3 (10% lapses).
    Example: `losses.segment_preference(reward, other_reward, mask=mask)`
    """
    difference = masked_sum(reward, mask, 0) - masked_sum(other_reward, other_mask, 0)
    return (1 - lapse) * jax.nn.sigmoid(difference) + lapse / 2


@check_arguments
def plackett_luce(reward: Array, mask: Array | None = None) -> Array:
    """Plackett-Luce loss of a reward model, which should reproduce a ranking of several items.

    -sum_k log(exp(r_k) / sum_{j >= k} exp(r_j)), items ordered from best to worst

    Args:
      reward: [..., K], the items' rewards in order of rank, the best first.
      mask: [..., K], true where an item exists; None: all.
    Returns: [...]; 0 for one item and for none; with two items it is `bradley_terry`.
    Gradients: none are stopped.
    Source: Luce, 1959, "Individual choice behavior"; Plackett, 1975, "The analysis of
      permutations".
    Example: `losses.plackett_luce(reward, mask).mean()`
    """
    allowed = _full_mask(reward, mask)
    # A finite floor, not -inf: a sum over no items would give NaN gradients.
    kept = jnp.where(allowed, reward, jnp.finfo(reward.dtype).min / 4)
    remaining = jax.lax.cumlogsumexp(kept, axis=reward.ndim - 1, reverse=True)
    return jnp.where(allowed, remaining - kept, 0).sum(-1)


@check_arguments
def uncertainty_weighted_reward(reward: Array, penalty: Array | float) -> Array:
    """Mean of an ensemble's rewards minus their disagreement, to resist over-optimization (UWO).

    mean_i r_i - penalty * var_i r_i: uncertainty-weighted optimization

    Args:
      reward: [..., M], one for each member of the ensemble.
      penalty: weight of the population variance, broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped.
    Source: Coste et al., 2024, "Reward model ensembles help mitigate overoptimization"
      (UWO).
    Example: `losses.uncertainty_weighted_reward(reward, penalty=0.5)`
    """
    return reward.mean(-1) - penalty * reward.var(-1)


@check_arguments
def robust_reward(nominal_reward: Array, reward: Array, weight: Array | float) -> Array:
    """Trade-off between a nominal reward and the worst of an ensemble (WCO).

    weight * nominal + (1 - weight) * min_i r_i; weight 0: worst-case optimization

    Args:
      nominal_reward: [...], e.g. the ensemble's mean or its most certain member.
      reward: [..., M], one for each member of the ensemble.
      weight: in [0, 1], broadcasts to [...]; 0 is worst-case optimization.
    Returns: [...].
    Gradients: none are stopped; those of the minimum flow into the smallest member.
    Source: Yan et al., 2024, "Reward-robust RLHF in LLMs"; with weight 0 Coste et al., 2024,
      "Reward model ensembles help mitigate overoptimization" (WCO).
    Example: `losses.robust_reward(nominal_reward, reward, weight=0.5)`
    """
    return weight * nominal_reward + (1 - weight) * reward.min(-1)


@check_arguments
def reward_smoothness(reward: Array, mask: Array | None = None) -> Array:
    """Regularizer that spreads a learned reward evenly over time.

    mean_t (r_{t+1} - r_t)^2, over neighboring steps that both count

    Args:
      reward: [T, ...].
      mask: [T, ...], true where a step counts; None: everywhere.
    Returns: [...]; 0 without neighbors.
    Gradients: none are stopped.
    Source: Zhang et al., 2024, "Multi-agent reinforcement learning from human feedback: data
      coverage and algorithmic techniques" (mean squared error along the time axis); the mean over
      pairs of steps is our normalization.
    Example: `losses.reward_smoothness(reward, mask).mean()`
    """
    allowed = _full_mask(reward, mask)
    kept = jnp.where(allowed, reward, 0)
    return masked_mean(jnp.square(kept[1:] - kept[:-1]), allowed[1:] & allowed[:-1], 0)


@check_arguments
def variational_preference(
    chosen_reward: Array,
    rejected_reward: Array,
    mean: Array,
    scale: Array,
    beta: Array | float = 1.0,
    mask: Array | None = None,
) -> Array:
    """Loss of a reward model with a latent variable per person (VPL): the negative ELBO.

    sum_n bradley_terry(r(chosen_n, z), r(rejected_n, z)) + beta KL(q(z) || N(0, I)), z ~ q

    Args:
      chosen_reward, rejected_reward: [..., N], of a person's pairs, given a sample of z.
      mean, scale: [..., Z], the Gaussian q encoded from the person's pairs.
      beta: weight of the divergence.
      mask: [..., N], true where a pair exists; None: all.
    Returns: [...].
    Gradients: none are stopped; those through z flow through the rewards (reparameterization).
    Source: Poddar et al., 2024, "Personalizing reinforcement learning from human feedback with
      variational preference learning".
    Example: `losses.variational_preference(chosen_reward, rejected_reward, mean, scale, mask=mask)`
    """
    allowed = True if mask is None else mask
    margin = jnp.where(allowed, chosen_reward - rejected_reward, 0)
    likelihood = masked_sum(bradley_terry(margin, jnp.zeros_like(margin)), mask, -1)
    prior = gaussian_kl(mean, scale, jnp.zeros_like(mean), jnp.ones_like(scale))
    return likelihood + beta * prior


@check_arguments
def hierarchical_preference(factors: Array, other_factors: Array, margin: Array | float) -> Array:
    """HERON's preference label, by the most important factor on which two trajectories differ.

    1 if f_i > g_i, 0 if f_i < g_i at the first i with |f_i - g_i| > margin_i; 0.5 if there is none

    Args:
      factors, other_factors: [..., F], e.g. summed rewards of each kind, most important first.
      margin: [F] or a scalar; smaller differences do not count.
    Returns: [...], 1 where the first is preferred; for `bradley_terry` with the first as the
      chosen one, use `label_smoothing` 1 - label.
    Gradients: none.
    Source: Bukharin et al., 2023, "Deep reinforcement learning from hierarchical weak preference
      feedback".
    Example: `losses.hierarchical_preference(factors, other_factors, margin)`
    """
    difference = factors - other_factors
    decisive = jnp.abs(difference) > margin
    first = jnp.argmax(decisive, -1, keepdims=True)
    sign = jnp.take_along_axis(jnp.sign(difference), first, -1)[..., 0]
    return jax.lax.stop_gradient(jnp.where(decisive.any(-1), 0.5 * (sign + 1), 0.5))


@check_arguments
def win_rate(preference: Array, mask: Array | None = None) -> Array:
    """SPO's reward of each sample of a group: the fraction of the others that it beats.

    r_i = mean_{j != i} P(i beats j)

    Args:
      preference: [..., K, K], entry i, j the probability that i is preferred to j; the diagonal is
        ignored.
      mask: [..., K], true where a sample exists; None: all.
    Returns: [..., K]; 0 for samples that do not exist or have no opponent.
    Gradients: none are stopped.
    Source: Swamy et al., 2024, "A minimaximalist approach to reinforcement learning from human
      feedback", algorithm 1 (SPO).
    Example: `losses.win_rate(preference, mask)`
    """
    size = preference.shape[-1]
    allowed = jnp.ones(preference.shape[:-1], bool) if mask is None else mask != 0
    pairs = allowed[..., :, None] & allowed[..., None, :] & ~jnp.eye(size, dtype=bool)
    return masked_mean(preference, pairs, -1)


@check_arguments
def best_of_n_kl(n: Array | int) -> Array:
    """KL divergence of best-of-n sampling from its base policy, in nats.

    log n - (n - 1) / n

    Args: n: number of samples from which the best is kept, at least 1.
    Returns: n's shape; exact without ties between samples, otherwise an upper bound.
    Gradients: none are stopped.
    Source: Stiennon et al., 2020, "Learning to summarize from human feedback", appendix G.3;
      Beirami et al., 2024, "Theoretical guarantees on the best-of-n alignment policy".
    Example: `losses.best_of_n_kl(n)`
    """
    n = jnp.asarray(n)
    return jnp.log(n) - (n - 1) / n
