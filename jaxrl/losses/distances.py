"""Lengths, distances, similarities and kernels of vectors, with finite gradients at 0.

Two arrays of vectors [..., D] are compared elementwise; two sets of vectors, [..., N, D] and
[..., M, D], pair by pair: [..., N, M].
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array

__all__ = [
    "cosine_distances",
    "cosine_similarity",
    "euclidean_distance",
    "kernel_mmd",
    "rbf_kernel",
    "safe_norm",
    "squared_distances",
    "unit_vector",
]


@check_arguments
def safe_norm(x: Array, axis: int = -1) -> Array:
    """Euclidean length of vectors, with a gradient of 0 instead of NaN at the zero vector.

    sqrt(sum_d x_d^2)

    Args:
      x: [..., D].
      axis: the axis of D.
    Returns: [...].
    Gradients: none are stopped; 0 at the zero vector.
    Source: common usage, e.g. `safe_norm` of Hessel et al., 2020, "Optax".
    Example: `losses.safe_norm(x)`
    """
    square = jnp.square(x).sum(axis)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


@check_arguments
def unit_vector(x: Array) -> Array:
    """Direction of a vector: the vector divided by its length.

    x / |x|

    Args: x: [..., D].
    Returns: [..., D]; 0 where the vector is 0.
    Gradients: none are stopped.
    Source: common usage, as in Chen and He, 2021, "Exploring simple siamese representation
      learning", eq. 1.
    Example: `losses.unit_vector(x)`
    """
    length = safe_norm(x)[..., None]
    return x / jnp.where(length > 0, length, 1)


@check_arguments
def euclidean_distance(x: Array, y: Array | float) -> Array:
    """Euclidean distance, with a gradient of 0 instead of NaN where it is 0.

    sqrt(sum_d (x_d - y_d)^2)

    Args: x, y: [..., D], broadcast to each other.
    Returns: [...].
    Gradients: none are stopped; 0 at distance 0.
    Source: common usage; as a value -|phi(s) - phi(g)| of a goal in Park et al., 2024, "Foundation
      policies with Hilbert representations".
    Example: `losses.euclidean_distance(x, y)`
    """
    return safe_norm(x - y)


@check_arguments
def cosine_similarity(x: Array, y: Array) -> Array:
    """Cosine of the angle between two vectors.

    <x, y> / (|x| |y|)

    Args: x, y: [..., D], broadcast to each other.
    Returns: [...], from -1 to 1; 0 where a vector is 0.
    Gradients: none are stopped.
    Source: Schwarzer et al., 2021, "Data-efficient reinforcement learning with self-predictive
      representations".
    Example: `losses.cosine_similarity(x, y)`
    """
    return (unit_vector(x) * unit_vector(y)).sum(-1)


@check_arguments
def squared_distances(x: Array, y: Array) -> Array:
    """Squared Euclidean distance between each row of x and each row of y.

    |x_i - y_j|^2

    Args:
      x: [..., N, D].
      y: [..., M, D].
    Returns: [..., N, M].
    Gradients: none are stopped.
    Source: common usage, as the cost in Cuturi, 2013, "Sinkhorn distances".
    Example: `losses.squared_distances(x, y)`
    """
    return jnp.square(x[..., :, None, :] - y[..., None, :, :]).sum(-1)


@check_arguments
def cosine_distances(x: Array, y: Array) -> Array:
    """One minus the cosine of the angle between each row of x and each row of y.

    1 - <x_i, y_j> / (|x_i| |y_j|), the cosine 0 where a row is 0

    Args:
      x: [..., N, D].
      y: [..., M, D].
    Returns: [..., N, M], from 0 (same direction) to 2.
    Gradients: none are stopped; 0 at rows that are 0.
    Source: Haldar et al., 2022, "Watch and match: supercharging imitation with regularized
      optimal transport" (the cost of its rewards).
    Example: `losses.cosine_distances(x, y)`
    """
    return 1 - cosine_similarity(x[..., :, None, :], y[..., None, :, :])


@check_arguments
def rbf_kernel(x: Array, y: Array, bandwidth: Array | float) -> Array:
    """Gaussian (RBF) kernel of each row of x and each row of y: 1 if equal, near 0 far apart.

    exp(-|x_i - y_j|^2 / (2 bandwidth^2))

    Args:
      x: [..., N, D], such as a population's actions on shared states, concatenated.
      y: [..., M, D].
      bandwidth: positive, broadcasts to [...].
    Returns: [..., N, M].
    Gradients: none are stopped.
    Source: Parker-Holder et al., 2020, "Effective diversity in population based reinforcement
      learning" (the published code's kernel).
    Example: `losses.rbf_kernel(x, y, bandwidth)`
    """
    variance = jnp.square(jnp.asarray(bandwidth, x.dtype))[..., None, None]
    return jnp.exp(-0.5 * squared_distances(x, y) / variance)


@check_arguments
def kernel_mmd(x: Array, y: Array, bandwidth: Array | float) -> Array:
    """Squared maximum mean discrepancy (MMD) of two sets of samples, with a Gaussian kernel.

    mean_ii' k(x_i, x_i') + mean_jj' k(y_j, y_j') - 2 mean_ij k(x_i, y_j), k = rbf_kernel

    Args:
      x: [..., N, D]; in BEAR, a few actions of the policy in one state.
      y: [..., M, D]; in BEAR, actions of a model of the data in that state.
      bandwidth: the kernel's, positive, broadcasts to [...].
    Returns: [...], nonnegative up to rounding (the V-statistic, which is biased upward).
    Gradients: none are stopped.
    Source: Gretton et al., 2012, "A kernel two-sample test", eq. 5; as a support constraint in
      Kumar et al., 2019, "Stabilizing off-policy Q-learning via bootstrapping error reduction"
      (BEAR, which bounds its root).
    Example: `losses.kernel_mmd(x, y, bandwidth=1.0)`
    """

    def mean(a, b):
        return rbf_kernel(a, b, bandwidth).mean((-2, -1))

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)
