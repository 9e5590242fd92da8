"""Distributions of the return: categorical on fixed atoms (C51), quantiles (QR-DQN, IQN, FQF)
and expectiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array
from jaxrl.losses.distributions.transforms import _support_slopes, two_hot, two_hot_inverse
from jaxrl.losses.reductions import at_action, masked_mean
from jaxrl.losses.values.errors_and_targets import expectile_error

__all__ = [
    "categorical_cross_entropy",
    "categorical_double_q_target",
    "categorical_mean",
    "categorical_projection",
    "cosine_features",
    "expectile_regression",
    "fraction_proposal",
    "quantile_calibration_error",
    "quantile_error",
    "quantile_huber",
    "quantile_wasserstein",
    "two_hot_cross_entropy",
]


def _sum_over_pairs(term: Callable, over: Sequence[Array], keep: Sequence[Array]) -> Array:
    """sum_j term(over[..., j, None], keep): a sum over all pairs of two last axes, in O(1) memory.

    XLA fuses the pairs into the sum, but on a CPU it then adds them up one by one. A loop over j
    works on whole vectors there and takes a tenth of the time.
    """
    # Not `jax.lax.platform_dependent`: it traces both ways, which takes longer to compile.
    if jax.default_backend() != "cpu":
        pairs = term(*(x[..., None] for x in over), *(x[..., None, :] for x in keep))
        return pairs.sum(-2)
    lead = jnp.broadcast_shapes(*(x.shape[:-1] for x in (*over, *keep)))
    dtype = jnp.result_type(*over, *keep)
    total = jnp.zeros((*lead, keep[0].shape[-1]), jnp.promote_types(dtype, jnp.float32))

    def add(j: Array, total: Array) -> Array:
        one = (jax.lax.dynamic_slice_in_dim(x, j, 1, -1) for x in over)
        return total + term(*one, *keep)

    return jax.lax.fori_loop(0, over[0].shape[-1], add, total).astype(dtype)


def categorical_projection(target_atoms: Array, probs: Array, atoms: Array) -> Array:
    """Move a distribution from any atoms onto a fixed support, as C51 does with its target.

    Each target atom's probability is shared between its two neighbors in the support, so that
    mass and, inside the support, mean stay: sum_j p_j two_hot(y_j, atoms)

    Args:
      target_atoms: [..., M], y, such as reward + discount * atoms, in any order.
      probs: [..., M], their probabilities.
      atoms: [K], increasing strictly, at any distances.
    Returns: [..., K], probabilities.
    Gradients: none is stopped.
    Source: Bellemare et al., 2017, "A distributional perspective on reinforcement learning",
      eq. 7; for other than equal distances Rowland et al., 2018, "An analysis of categorical
      distributional reinforcement learning".
    Example: `losses.categorical_projection(target_atoms, probs, atoms)`
    """
    left, right = _support_slopes(atoms)

    def share(y: Array, prob: Array, atom: Array, left: Array, right: Array) -> Array:
        distance = y - atom
        return prob * jnp.maximum(1 - jnp.maximum(distance * left, distance * right), 0)

    return _sum_over_pairs(share, (target_atoms, probs), (atoms, left, right))


def categorical_cross_entropy(logits: Array, target_probs: Array) -> Array:
    """Cross-entropy of a predicted distribution to a target one, such as a projected return.

    -sum_k target_k log softmax(logits)_k

    Args:
      logits: [..., K], unnormalized; -inf where something is impossible.
      target_probs: [..., K]. Search's visit counts divided by their sum make this AlphaZero's
        and expert iteration's loss of the policy; rows of zeros give 0.
    Returns: [...]; infinite where the prediction excludes what the target allows.
    Gradients: none flows into `target_probs`.
    Source: Bellemare et al., 2017, "A distributional perspective on reinforcement learning",
      algorithm 1; Silver et al., 2018, "A general reinforcement learning algorithm that masters
      chess, shogi, and Go through self-play".
    Example: `losses.categorical_cross_entropy(logits, target_probs).mean()`
    """
    target_probs = jax.lax.stop_gradient(target_probs)
    log_prob = jax.nn.log_softmax(logits)
    return -(target_probs * jnp.where(target_probs > 0, log_prob, 0)).sum(-1)


def two_hot_cross_entropy(logits: Array, target: Array, atoms: Array) -> Array:
    """Regress a scalar by classification: cross-entropy to its two-hot encoding.

    categorical_cross_entropy(logits, two_hot(target, atoms))

    Args:
      logits: [..., K].
      target: [...], in the support's space: MuZero has signed_hyperbolic(value) and integer
        atoms; Dreamer v3 the value itself and atoms symexp(-20), ..., symexp(20).
      atoms: [K], increasing strictly.
    Returns: [...].
    Gradients: none flows into `target` and `atoms`.
    Source: Hafner et al., 2023, "Mastering diverse domains through world models";
      Schrittwieser et al., 2020, "Mastering Atari, Go, chess and shogi by planning with a
      learned model", appendix F.
    Example: `losses.two_hot_cross_entropy(logits, target, atoms).mean()`
    """
    return categorical_cross_entropy(logits, two_hot(target, atoms))


def categorical_mean(logits: Array, atoms: Array) -> Array:
    """Mean of a categorical distribution on a support: the value that it predicts.

    sum_k softmax(logits)_k a_k

    Args:
      logits: [..., K].
      atoms: [K].
    Returns: [...].
    Gradients: none is stopped.
    Source: Bellemare et al., 2017, "A distributional perspective on reinforcement learning",
      algorithm 1.
    Example: `losses.categorical_mean(logits, atoms)`
    """
    return two_hot_inverse(jax.nn.softmax(logits), atoms)


def categorical_double_q_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_logits: Array,
    next_selector_logits: Array,
    atoms: Array,
) -> Array:
    """C51's target distribution, of the next action whose mean a selector finds greatest.

    Projection of reward + discount * Z(a*), Z = next_logits' distribution (0 where terminated),
    a* = argmax_a mean of the selector's distribution

    Args:
      reward, terminated: [...].
      discount: broadcasts to [...]; discount^n with n-step rewards.
      next_logits: [..., A, K], of the target network.
      next_selector_logits: [..., A, K], of the online network (double Q-learning, Rainbow) or
        `next_logits` again (C51).
      atoms: [K], increasing strictly.
    Returns: [..., K], probabilities.
    Gradients: none flows anywhere: this is a target.
    Source: Bellemare et al., 2017, "A distributional perspective on reinforcement learning",
      algorithm 1; Hessel et al., 2018, "Rainbow: combining improvements in deep reinforcement
      learning".
    Example: `losses.categorical_double_q_target(reward, terminated, discount, next_logits,
      next_selector_logits, atoms)`
    """
    best = categorical_mean(next_selector_logits, atoms).argmax(-1)
    logits = jax.vmap(at_action, in_axes=(-1, None), out_axes=-1)(next_logits, best)
    keep = jnp.where(terminated, 0, discount).astype(reward.dtype)
    target_atoms = reward[..., None] + keep[..., None] * atoms
    probs = categorical_projection(target_atoms, jax.nn.softmax(logits), atoms)
    return jax.lax.stop_gradient(probs)


def quantile_error(value: Array, target: Array, tau: Array | float) -> Array:
    """Asymmetric absolute error (pinball), whose minimizer is a quantile of the targets.

    |tau - 1(target < value)| * |target - value|

    Args:
      value, target: [...].
      tau: in (0, 1), broadcasts to [...]; 0.5 gives half the absolute error: the median.
    Returns: [...].
    Gradients: none flows into `target` and `tau`.
    Source: Koenker and Bassett, 1978, "Regression quantiles"; Dabney et al., 2018,
      "Distributional reinforcement learning with quantile regression", eq. 8.
    Example: `losses.quantile_error(value, target, tau=0.9).mean()`
    """
    difference = jax.lax.stop_gradient(target) - value
    tau = jax.lax.stop_gradient(tau)
    return jnp.where(difference < 0, tau - 1, tau) * difference


def quantile_huber(
    quantiles: Array, tau: Array, target: Array, threshold: Array | float = 1.0
) -> Array:
    """Loss of QR-DQN and IQN: draws predicted quantiles to those of target samples.

    sum_i mean_j |tau_i - 1(u_ij < 0)| * huber(u_ij, threshold) / threshold,
    u_ij = target_j - quantiles_i

    Args:
      quantiles: [..., N].
      tau: [..., N], the quantiles' fractions: (i + 1/2) / N in QR-DQN, sampled in IQN.
      target: [..., M], samples or quantiles of the target: reward + discount * next quantiles.
      threshold: Huber's, a scalar; 0: the plain quantile error. QR-DQN does not divide by it.
    Returns: [...].
    Gradients: none flows into `tau` and `target`.
    Source: Dabney et al., 2018, "Implicit quantile networks for distributional reinforcement
      learning", eq. 3; Dabney et al., 2018, "Distributional reinforcement learning with quantile
      regression", eq. 10.
    Example: `losses.quantile_huber(quantiles, tau, target).mean()`
    """
    tau, target = jax.lax.stop_gradient((jnp.broadcast_to(tau, quantiles.shape), target))
    return _quantile_huber(quantiles, tau, target, threshold).sum(-1) / target.shape[-1]


def _over_threshold(difference: Array, threshold: Array | float) -> Array:
    """min(|difference| / threshold, 1), with threshold 0: 1, and 0 for no difference."""
    smallest = jnp.finfo(difference.dtype).tiny
    return jnp.minimum(jnp.abs(difference) * (1 / jnp.maximum(threshold, smallest)), 1)


@jax.custom_jvp
def _quantile_huber(quantiles: Array, tau: Array, target: Array, threshold: Array | float) -> Array:
    """The sum over targets, for each quantile."""

    def error(target: Array, quantile: Array, tau: Array) -> Array:
        difference = target - quantile
        share = _over_threshold(difference, threshold)
        size = share * (jnp.abs(difference) - 0.5 * threshold * share)
        return jnp.where(difference < 0, 1 - tau, tau) * size

    return _sum_over_pairs(error, (target,), (quantiles, tau))


@_quantile_huber.defjvp
def _quantile_huber_slope(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Without this, the derivative of the loop would keep an array for each of its steps."""
    quantiles, tau, target, threshold = primals

    def slope(target: Array, quantile: Array, tau: Array) -> Array:
        difference = target - quantile
        weight = jnp.where(difference < 0, 1 - tau, -tau)
        return weight * _over_threshold(difference, threshold)

    slopes = _sum_over_pairs(slope, (target,), (quantiles, tau))
    return _quantile_huber(*primals), slopes * tangents[0]


def expectile_regression(expectiles: Array, tau: Array, target: Array) -> Array:
    """Loss of ER-DQN: draws predicted expectiles to those of target samples.

    sum_i mean_j |tau_i - 1(z_j < e_i)| (z_j - e_i)^2

    Args:
      expectiles: [..., N], e; the one with tau = 1/2 is the mean.
      tau: [..., N], their fractions in (0, 1).
      target: [..., M], z: samples of the target's distribution. Predicted expectiles are not
        samples: find samples that have them (imputation) first.
    Returns: [...].
    Gradients: none flows into `tau` and `target`.
    Source: Rowland et al., 2019, "Statistics and samples in distributional reinforcement
      learning" (ER-DQN).
    Example: `losses.expectile_regression(expectiles, tau, target).mean()`
    """
    tau = jax.lax.stop_gradient(tau)[..., None]
    return expectile_error(expectiles[..., None], target[..., None, :], tau).mean(-1).sum(-1)


def quantile_wasserstein(quantiles: Array, other_quantiles: Array) -> Array:
    """1-Wasserstein distance between two distributions given by as many quantiles (or samples).

    mean_i |x_(i) - y_(i)|, both sorted

    Args: quantiles, other_quantiles: [..., N], of equal weight, in any order.
    Returns: [...].
    Gradients: none is stopped.
    Source: Dabney et al., 2018, "Distributional reinforcement learning with quantile
      regression".
    Example: `losses.quantile_wasserstein(quantiles, other_quantiles)`
    """
    return jnp.abs(jnp.sort(quantiles) - jnp.sort(other_quantiles)).mean(-1)


def quantile_calibration_error(
    quantiles: Array, tau: Array, sample: Array, mask: Array | None = None
) -> Array:
    """How far the share of outcomes below each predicted quantile is from its fraction.

    mean_i |mean(sample <= quantiles_i) - tau_i|; 0 is perfect calibration

    Args:
      quantiles: [..., N], one set of predictions for each sample.
      tau: [N], their fractions.
      sample: [...], what came.
      mask: [...], true where a sample counts; None: everywhere.
    Returns: a scalar; the mean of tau if nothing counts.
    Gradients: none flows anywhere: this is a figure to report.
    Source: Kuleshov et al., 2018, "Accurate uncertainties for deep learning using calibrated
      regression" (there squared).
    Example: `losses.quantile_calibration_error(quantiles, tau, sample)`
    """
    below = (sample[..., None] <= quantiles).astype(quantiles.dtype)
    mask = None if mask is None else mask[..., None]
    share = masked_mean(below, mask, tuple(range(below.ndim - 1)))
    return jnp.abs(share - jax.lax.stop_gradient(tau)).mean()


def fraction_proposal(tau: Array, quantiles: Array, quantiles_at_midpoints: Array) -> Array:
    """Loss of FQF's proposed fractions: moves them to where few steps fit the quantiles best.

    sum_i tau_i (2 F^-1(tau_i) - F^-1(m_i) - F^-1(m_(i-1))), i = 1, ..., N - 1, whose gradient is
    that of the 1-Wasserstein distance between F^-1 and its steps; m_i = (tau_i + tau_(i+1)) / 2

    Args:
      tau: [..., N - 1], increasing, strictly between tau_0 = 0 and tau_N = 1.
      quantiles: [..., N - 1], F^-1 at `tau`.
      quantiles_at_midpoints: [..., N], F^-1 at m_0, ..., m_(N-1).
    Returns: [...]; only its gradient has a meaning.
    Gradients: flow into `tau` only.
    Source: Yang et al., 2019, "Fully parameterized quantile function for distributional
      reinforcement learning", proposition 1.
    Example: `losses.fraction_proposal(tau, quantiles, quantiles_at_midpoints).mean()`
    """
    around = quantiles_at_midpoints[..., 1:] + quantiles_at_midpoints[..., :-1]
    return (jax.lax.stop_gradient(2 * quantiles - around) * tau).sum(-1)


def cosine_features(tau: Array, number: int = 64) -> Array:
    """Features of quantile fractions, from which IQN's network makes their embedding.

    cos(pi i tau), i = 1, ..., number; the paper prints 0, ..., number - 1, the first of which is
    constant (an error, by its authors: ChainerRL)

    Args:
      tau: [...], in [0, 1].
      number: how many features.
    Returns: [..., number].
    Gradients: none is stopped.
    Source: Dabney et al., 2018, "Implicit quantile networks for distributional reinforcement
      learning", eq. 4.
    Example: `losses.cosine_features(tau, number=64)`
    """
    return jnp.cos(math.pi * tau[..., None] * jnp.arange(1, number + 1, dtype=tau.dtype))
