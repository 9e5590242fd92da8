"""Return distributions: categorical (C51), quantiles (QR-DQN, IQN, FQF) and expectiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
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
    """Return sum_j term(over[..., j, None], keep), over all pairs of two last axes, in O(1) memory.

    XLA fuses the pairs into the sum, but on a CPU it then adds them one by one. There, a loop over
    j that works on whole vectors takes a tenth of the time.
    """
    # Not `jax.lax.platform_dependent`, which traces both ways and takes longer to compile.
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


@check_arguments
def categorical_projection(target_atoms: Array, probs: Array, atoms: Array) -> Array:
    """Project a distribution from arbitrary atoms onto a fixed support, as C51 does.

    Each target atom's probability is split between its two neighbors in the support, which
    preserves mass and, inside the support, the mean: sum_j p_j two_hot(y_j, atoms)

    Args:
      target_atoms: [..., M], y, such as reward + discount * atoms, in any order.
      probs: [..., M], their probabilities.
      atoms: [K], strictly increasing, at any distances.
    Returns: [..., K], probabilities.
    Gradients: none are stopped.
    Source: Bellemare et al., 2017, "A distributional perspective on reinforcement learning",
      eq. 7; for unequal distances Rowland et al., 2018, "An analysis of categorical distributional
      reinforcement learning".
    Example: `losses.categorical_projection(target_atoms, probs, atoms)`
    """
    left, right = _support_slopes(atoms)

    def share(y: Array, prob: Array, atom: Array, left: Array, right: Array) -> Array:
        distance = y - atom
        return prob * jnp.maximum(1 - jnp.maximum(distance * left, distance * right), 0)

    return _sum_over_pairs(share, (target_atoms, probs), (atoms, left, right))


@check_arguments
def categorical_cross_entropy(logits: Array, target_probs: Array) -> Array:
    """Cross-entropy of a predicted distribution against a target one, e.g. a projected return.

    -sum_k target_k log softmax(logits)_k

    Args:
      logits: [..., K], unnormalized; -inf where an outcome is impossible.
      target_probs: [..., K]. With a search's visit counts divided by their sum, this is the
        policy loss of AlphaZero and expert iteration; rows of zeros give 0.
    Returns: [...]; infinite where the prediction excludes what the target allows.
    Gradients: none flow into `target_probs`.
    Source: Bellemare et al., 2017, "A distributional perspective on reinforcement learning",
      algorithm 1; Silver et al., 2018, "A general reinforcement learning algorithm that masters
      chess, shogi, and Go through self-play".
    Example: `losses.categorical_cross_entropy(logits, target_probs).mean()`
    """
    target_probs = jax.lax.stop_gradient(target_probs)
    log_prob = jax.nn.log_softmax(logits)
    return -(target_probs * jnp.where(target_probs > 0, log_prob, 0)).sum(-1)


@check_arguments
def two_hot_cross_entropy(logits: Array, target: Array, atoms: Array) -> Array:
    """Regress a scalar by classification: cross-entropy against its two-hot encoding.

    categorical_cross_entropy(logits, two_hot(target, atoms))

    Args:
      logits: [..., K].
      target: [...], in the support's space: MuZero uses signed_hyperbolic(value) and integer
        atoms; Dreamer v3 uses the value itself and atoms symexp(-20), ..., symexp(20).
      atoms: [K], strictly increasing.
    Returns: [...].
    Gradients: none flow into `target` or `atoms`.
    Source: Hafner et al., 2023, "Mastering diverse domains through world models";
      Schrittwieser et al., 2020, "Mastering Atari, Go, chess and shogi by planning with a
      learned model", appendix F.
    Example: `losses.two_hot_cross_entropy(logits, target, atoms).mean()`
    """
    return categorical_cross_entropy(logits, two_hot(target, atoms))


@check_arguments
def categorical_mean(logits: Array, atoms: Array) -> Array:
    """Mean of a categorical distribution on a support, the value it predicts.

    sum_k softmax(logits)_k a_k

    Args:
      logits: [..., K].
      atoms: [K].
    Returns: [...].
    Gradients: none are stopped.
    Source: Bellemare et al., 2017, "A distributional perspective on reinforcement learning",
      algorithm 1.
    Example: `losses.categorical_mean(logits, atoms)`
    """
    return two_hot_inverse(jax.nn.softmax(logits), atoms)


@check_arguments
def categorical_double_q_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_logits: Array,
    next_selector_logits: Array,
    atoms: Array,
) -> Array:
    """C51's target distribution, for the next action whose mean a selector ranks highest.

    Projection of reward + discount * Z(a*), Z = next_logits' distribution (0 where terminated),
    a* = argmax_a mean of the selector's distribution

    Args:
      reward, terminated: [...].
      discount: broadcasts to [...]; discount^n with n-step rewards.
      next_logits: [..., A, K], from the target network.
      next_selector_logits: [..., A, K], from the online network (double Q-learning, Rainbow) or
        `next_logits` again (C51).
      atoms: [K], strictly increasing.
    Returns: [..., K], probabilities.
    Gradients: none: this is a target.
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


@check_arguments
def quantile_error(value: Array, target: Array, tau: Array | float) -> Array:
    """Asymmetric absolute error (pinball loss), minimized by a quantile of the targets.

    |tau - 1(target < value)| * |target - value|

    Args:
      value, target: [...].
      tau: in (0, 1), broadcasts to [...]; 0.5 gives half the absolute error: the median.
    Returns: [...].
    Gradients: none flow into `target` or `tau`.
    Source: Koenker and Bassett, 1978, "Regression quantiles"; Dabney et al., 2018,
      "Distributional reinforcement learning with quantile regression", eq. 8.
    Example: `losses.quantile_error(value, target, tau=0.9).mean()`
    """
    difference = jax.lax.stop_gradient(target) - value
    tau = jax.lax.stop_gradient(tau)
    return jnp.where(difference < 0, tau - 1, tau) * difference


@check_arguments
def quantile_huber(
    quantiles: Array, tau: Array, target: Array, threshold: Array | float = 1.0
) -> Array:
    """Loss of QR-DQN and IQN: regress predicted quantiles on target samples.

    sum_i mean_j |tau_i - 1(u_ij < 0)| * huber(u_ij, threshold) / threshold,
    u_ij = target_j - quantiles_i

    Args:
      quantiles: [..., N].
      tau: [..., N], the quantiles' fractions: (i + 1/2) / N in QR-DQN, sampled in IQN.
      target: [..., M], samples or quantiles of the target: reward + discount * next quantiles.
      threshold: of the Huber loss, a scalar; 0: the plain quantile error. QR-DQN does not divide
        by it.
    Returns: [...].
    Gradients: none flow into `tau` or `target`.
    Source: Dabney et al., 2018, "Implicit quantile networks for distributional reinforcement
      learning", eq. 3; Dabney et al., 2018, "Distributional reinforcement learning with quantile
      regression", eq. 10.
    Example: `losses.quantile_huber(quantiles, tau, target).mean()`
    """
    tau, target = jax.lax.stop_gradient((jnp.broadcast_to(tau, quantiles.shape), target))
    return _quantile_huber(quantiles, tau, target, threshold).sum(-1) / target.shape[-1]


def _over_threshold(difference: Array, threshold: Array | float) -> Array:
    """Return min(|difference| / threshold, 1); for threshold 0: 1, or 0 if the difference is 0."""
    smallest = jnp.finfo(difference.dtype).tiny
    return jnp.minimum(jnp.abs(difference) * (1 / jnp.maximum(threshold, smallest)), 1)


@jax.custom_jvp
def _quantile_huber(quantiles: Array, tau: Array, target: Array, threshold: Array | float) -> Array:
    """Sum over targets, for each quantile."""

    def error(target: Array, quantile: Array, tau: Array) -> Array:
        difference = target - quantile
        share = _over_threshold(difference, threshold)
        size = share * (jnp.abs(difference) - 0.5 * threshold * share)
        return jnp.where(difference < 0, 1 - tau, tau) * size

    return _sum_over_pairs(error, (target,), (quantiles, tau))


@_quantile_huber.defjvp
def _quantile_huber_slope(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Derivative of `_quantile_huber`; the loop's own would store an array for each step."""
    quantiles, tau, target, threshold = primals

    def slope(target: Array, quantile: Array, tau: Array) -> Array:
        difference = target - quantile
        weight = jnp.where(difference < 0, 1 - tau, -tau)
        return weight * _over_threshold(difference, threshold)

    slopes = _sum_over_pairs(slope, (target,), (quantiles, tau))
    return _quantile_huber(*primals), slopes * tangents[0]


@check_arguments
def expectile_regression(expectiles: Array, tau: Array, target: Array) -> Array:
    """Loss of ER-DQN: regress predicted expectiles on target samples.

    sum_i mean_j |tau_i - 1(z_j < e_i)| (z_j - e_i)^2

    Args:
      expectiles: [..., N], e; the one with tau = 1/2 is the mean.
      tau: [..., N], their fractions in (0, 1).
      target: [..., M], z: samples of the target distribution. Predicted expectiles are not
        samples: first find samples that have these expectiles (imputation).
    Returns: [...].
    Gradients: none flow into `tau` or `target`.
    Source: Rowland et al., 2019, "Statistics and samples in distributional reinforcement
      learning" (ER-DQN).
    Example: `losses.expectile_regression(expectiles, tau, target).mean()`
    """
    tau = jax.lax.stop_gradient(tau)[..., None]
    return expectile_error(expectiles[..., None], target[..., None, :], tau).mean(-1).sum(-1)


@check_arguments
def quantile_wasserstein(quantiles: Array, other_quantiles: Array) -> Array:
    """1-Wasserstein distance of two distributions with equally many quantiles (or samples).

    mean_i |x_(i) - y_(i)|, both sorted

    Args: quantiles, other_quantiles: [..., N], of equal weight, in any order.
    Returns: [...].
    Gradients: none are stopped.
    Source: Dabney et al., 2018, "Distributional reinforcement learning with quantile
      regression".
    Example: `losses.quantile_wasserstein(quantiles, other_quantiles)`
    """
    return jnp.abs(jnp.sort(quantiles) - jnp.sort(other_quantiles)).mean(-1)


@check_arguments
def quantile_calibration_error(
    quantiles: Array, tau: Array, sample: Array, mask: Array | None = None
) -> Array:
    """Calibration error: distance of the share of outcomes below each quantile from its fraction.

    mean_i |mean(sample <= quantiles_i) - tau_i|; 0 is perfect calibration

    Args:
      quantiles: [..., N], one set of predictions for each sample.
      tau: [N], their fractions.
      sample: [...], the outcomes.
      mask: [...], true where a sample counts; None: everywhere.
    Returns: a scalar; the mean of tau if no sample counts.
    Gradients: none: this is a diagnostic.
    Source: Kuleshov et al., 2018, "Accurate uncertainties for deep learning using calibrated
      regression" (squared there).
    Example: `losses.quantile_calibration_error(quantiles, tau, sample)`
    """
    below = (sample[..., None] <= quantiles).astype(quantiles.dtype)
    mask = None if mask is None else mask[..., None]
    share = masked_mean(below, mask, tuple(range(below.ndim - 1)))
    return jnp.abs(share - jax.lax.stop_gradient(tau)).mean()


@check_arguments
def fraction_proposal(tau: Array, quantiles: Array, quantiles_at_midpoints: Array) -> Array:
    """FQF's loss of the proposed fractions, moving them to where steps fit the quantiles best.

    sum_i tau_i (2 F^-1(tau_i) - F^-1(m_i) - F^-1(m_(i-1))), i = 1, ..., N - 1, whose gradient is
    that of the 1-Wasserstein distance between F^-1 and its steps; m_i = (tau_i + tau_(i+1)) / 2

    Args:
      tau: [..., N - 1], increasing, strictly between tau_0 = 0 and tau_N = 1.
      quantiles: [..., N - 1], F^-1 at `tau`.
      quantiles_at_midpoints: [..., N], F^-1 at m_0, ..., m_(N-1).
    Returns: [...]; only its gradient is meaningful.
    Gradients: flow only into `tau`.
    Source: Yang et al., 2019, "Fully parameterized quantile function for distributional
      reinforcement learning", proposition 1.
    Example: `losses.fraction_proposal(tau, quantiles, quantiles_at_midpoints).mean()`
    """
    around = quantiles_at_midpoints[..., 1:] + quantiles_at_midpoints[..., :-1]
    return (jax.lax.stop_gradient(2 * quantiles - around) * tau).sum(-1)


@check_arguments
def cosine_features(tau: Array, number: int = 64) -> Array:
    """Cosine features of quantile fractions, the input of IQN's embedding.

    cos(pi i tau), i = 1, ..., number; the paper prints 0, ..., number - 1, the first of which is
    constant (an error according to its authors: ChainerRL)

    Args:
      tau: [...], in [0, 1].
      number: number of features.
    Returns: [..., number].
    Gradients: none are stopped.
    Source: Dabney et al., 2018, "Implicit quantile networks for distributional reinforcement
      learning", eq. 4.
    Example: `losses.cosine_features(tau, number=64)`
    """
    return jnp.cos(math.pi * tau[..., None] * jnp.arange(1, number + 1, dtype=tau.dtype))
