"""Transfer operators from pairs of features one step apart, and the rank of a batch of features.

The second-to-last axis is the batch; results are properties of all its samples.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array

__all__ = [
    "effective_rank",
    "latent_deviation",
    "metric_distortion",
    "operator_projection",
    "relaxed_operator_projection",
    "task_vector",
]


def _at_least_float32(x: Array) -> Array:
    """Cast to at least single precision, which the matrix factorizations need."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _masked_samples(x: Array, mask: Array | None) -> tuple[Array, Array]:
    """Return the samples with those that do not count set to 0, and their number: [..., 1, 1]."""
    x = _at_least_float32(x)
    if mask is None:
        return x, jnp.full((1, 1), max(x.shape[-2], 1), x.dtype)
    mask = jnp.broadcast_to(mask, x.shape[:-1]).astype(bool)[..., None]
    return jnp.where(mask, x, 0), jnp.maximum(mask.sum(-2, keepdims=True), 1).astype(x.dtype)


def _center(x: Array, mask: Array | None) -> tuple[Array, Array]:
    """Return the samples that count minus their mean, and their number."""
    x, number = _masked_samples(x, mask)
    centered = x - x.sum(-2, keepdims=True) / number
    return (centered if mask is None else _masked_samples(centered, mask)[0]), number


def _covariances(x: Array, y: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Return the covariances of x, of y, and of x with y."""
    (x, number), (y, _) = _center(x, mask), _center(y, mask)
    product = lambda a, b: precise.matmul(jnp.swapaxes(a, -1, -2), b) / number
    return product(x, x), product(y, y), product(x, y)


@check_arguments
def operator_projection(
    features: Array, next_features: Array, mask: Array | None = None, ridge: float = 1e-6
) -> Array:
    """DPNet's loss: the transfer operator should map the features' span into the next features'.

    -|C_X^(-1/2) C_XY C_Y^(-1/2)|_F^2 = -tr(C_X^-1 C_XY C_Y^-1 C_YX)

    Covariances are centered, which leaves out the constant function. The best D features give minus
    the sum of the D largest squared singular values of the operator after the first, which is 1.

    Args:
      features, next_features: [..., N, D], of pairs of observations one step apart.
      mask: [..., N], true where a pair counts; None: everywhere.
      ridge: added to the diagonals of C_X and C_Y before inversion.
    Returns: [...], from -D to 0.
    Gradients: none are stopped.
    Source: Kostic et al., 2024, "Learning invariant representations of time-homogeneous stochastic
      dynamical systems" (the projection score, negated).
    Example: `losses.operator_projection(features, next_features)`
    """
    own, following, cross = _covariances(features, next_features, mask)
    diagonal = ridge * jnp.eye(own.shape[-1], dtype=own.dtype)
    forward = jnp.linalg.solve(own + diagonal, cross)
    backward = jnp.linalg.solve(following + diagonal, jnp.swapaxes(cross, -1, -2))
    trace = (forward * jnp.swapaxes(backward, -1, -2)).sum((-1, -2))
    return -trace.astype(features.dtype)


@check_arguments
def relaxed_operator_projection(
    features: Array, next_features: Array, mask: Array | None = None
) -> Array:
    """DPNet's relaxed loss, without inverses: stable where features are few or nearly dependent.

    -|C_XY|_F^2 / (|C_X| |C_Y|), |C| the largest eigenvalue

    It is never below `operator_projection`, and equals it where both covariances are multiples of
    the identity, which `metric_distortion` encourages.

    Args:
      features, next_features: [..., N, D], of pairs of observations one step apart.
      mask: [..., N], true where a pair counts; None: everywhere.
    Returns: [...]; 0 where features are constant.
    Gradients: none are stopped.
    Source: Kostic et al., 2024, "Learning invariant representations of time-homogeneous stochastic
      dynamical systems" (the relaxed score, negated).
    Example: `losses.relaxed_operator_projection(features, next_features)`
    """
    own, following, cross = _covariances(features, next_features, mask)
    norm = jnp.linalg.eigvalsh(own)[..., -1] * jnp.linalg.eigvalsh(following)[..., -1]
    varies = norm > 0
    score = jnp.where(varies, jnp.square(cross).sum((-1, -2)) / jnp.where(varies, norm, 1), 0)
    return -score.astype(features.dtype)


@check_arguments
def metric_distortion(features: Array, mask: Array | None = None) -> Array:
    """Penalty that is 0 where features are uncorrelated with unit variance.

    tr(C^2 - C - log C), C the covariance of the features

    Args:
      features: [..., N, D].
      mask: [..., N], true where a sample counts; None: everywhere.
    Returns: [...], nonnegative; an eigenvalue of 0 counts as D times the machine epsilon.
    Gradients: none are stopped; the logarithm's is 0 at an eigenvalue of 0.
    Source: Kostic et al., 2024, "Learning invariant representations of time-homogeneous stochastic
      dynamical systems" (the regularizer).
    Example: `losses.metric_distortion(features)`
    """
    own, _, _ = _covariances(features, features, mask)
    eigenvalue = jnp.linalg.eigvalsh(own)
    floor = own.shape[-1] * jnp.finfo(own.dtype).eps
    logarithm = jnp.log(jnp.maximum(eigenvalue, floor))
    return (jnp.square(eigenvalue) - eigenvalue - logarithm).sum(-1).astype(features.dtype)


@check_arguments
def task_vector(
    features: Array, reward: Array, mask: Array | None = None, ridge: float = 1e-6
) -> Array:
    """Weights that best predict rewards from features: the task of successor features or HILP.

    argmin_w mean_n (<features_n, w> - reward_n)^2 + ridge |w|^2

    Args:
      features: [..., N, D], phi(s, a, s') (for HILP phi(s') - phi(s), then `unit_vector`).
      reward: [..., N].
      mask: [..., N], true where a sample counts; None: everywhere.
      ridge: positive.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Barreto et al., 2017, "Successor features for transfer in reinforcement learning",
      section 3; Park et al., 2024, "Foundation policies with Hilbert representations".
    Example: `losses.task_vector(features, reward)`
    """
    x, number = _masked_samples(features, mask)
    y, _ = _masked_samples(reward[..., None], mask)
    transposed = jnp.swapaxes(x, -1, -2)
    gram = precise.matmul(transposed, x) / number + ridge * jnp.eye(x.shape[-1], dtype=x.dtype)
    return jnp.linalg.solve(gram, precise.matmul(transposed, y) / number)[..., 0].astype(
        features.dtype
    )


@check_arguments
def latent_deviation(latent: Array, mask: Array | None = None) -> Array:
    """Standard deviation of latents over a batch, averaged over features: 0 means collapse.

    mean_d std_n latent_nd

    Args:
      latent: [..., N, D].
      mask: [..., N], true where a sample counts; None: everywhere.
    Returns: [...].
    Gradients: none; this is a diagnostic, not a loss.
    Source: Chen and He, 2021, "Exploring simple siamese representation learning", section 4.1.
    Example: `losses.latent_deviation(latent)`
    """
    centered, number = _center(jax.lax.stop_gradient(latent), mask)
    variance = jnp.square(centered).sum(-2) / number[..., 0]
    return jnp.sqrt(variance).mean(-1).astype(latent.dtype)


@check_arguments
def effective_rank(latent: Array, mask: Array | None = None) -> Array:
    """Effective rank: the number of dimensions that a batch of latents spans; 0 or 1 is a collapse.

    exp(-sum_k p_k log p_k), p_k = s_k / sum_j s_j, s the centered latents' singular values

    Args:
      latent: [..., N, D].
      mask: [..., N], true where a sample counts; None: everywhere.
    Returns: [...], at most D; 0 where all latents are equal.
    Gradients: none; this is a diagnostic, not a loss.
    Source: Roy and Vetterli, 2007, "The effective rank", definition 1 (here after centering, so
      that a constant does not count).
    Example: `losses.effective_rank(latent)`
    """
    centered, _ = _center(jax.lax.stop_gradient(latent), mask)
    singular = jnp.linalg.svd(centered, compute_uv=False)
    total = singular.sum(-1, keepdims=True)
    share = singular / jnp.where(total > 0, total, 1)
    entropy = -jax.scipy.special.xlogy(share, share).sum(-1)
    return jnp.where(total[..., 0] > 0, jnp.exp(entropy), 0).astype(latent.dtype)
