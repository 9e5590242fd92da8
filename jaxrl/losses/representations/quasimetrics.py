"""Asymmetric distances between latent vectors, and the losses of quasimetric RL."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.gradients.estimators import scale_gradient
from jaxrl.losses.distances import euclidean_distance

__all__ = [
    "interval_union",
    "iqe",
    "mrn",
    "pqe",
    "quasimetric_constraint",
    "quasimetric_push",
]


@check_arguments
def mrn(x: Array, y: Array, x_residual: Array, y_residual: Array) -> Array:
    """Metric residual network (MRN): a symmetric distance plus an asymmetric remainder.

    sqrt(mean_d (x_d - y_d)^2) + max_k max(0, x'_k - y'_k)

    Args:
      x, y: [..., D], the two points in the latent space of the symmetric part.
      x_residual, y_residual: [..., K], the same points in that of the asymmetric part.
    Returns: [...], the distance from x to y.
    Gradients: none are stopped; 0 where a part is 0.
    Source: Liu et al., 2022, "Metric residual networks for sample efficient goal-conditioned
      reinforcement learning", with the root of Wang and Isola, 2022, "Improved representation of
      asymmetrical distances with interval quasimetric embeddings" (appendix): without it the
      triangle inequality does not hold.
    Example: `losses.mrn(x, y, x_residual, y_residual)`
    """
    symmetric = euclidean_distance(x, y) / x.shape[-1] ** 0.5
    return symmetric + jax.nn.relu((x_residual - y_residual).max(-1))


@check_arguments
def pqe(x: Array, y: Array, weight: Array | float) -> Array:
    """Poisson quasimetric embedding (PQE-LH): components that grow with the excess of x over y.

    sum_k weight_k (1 - exp(-sum_d max(0, x_kd - y_kd)))

    Args:
      x, y: [..., K, D], latents in K components.
      weight: broadcasts to [..., K], nonnegative.
    Returns: [...], the distance from x to y, at most the sum of the weights.
    Gradients: none are stopped.
    Source: Wang and Isola, 2022, "On the learning and learnability of quasimetrics", eq. 9. The
      published code has the mean over d, which is this of latents divided by their number.
    Example: `losses.pqe(x, y, weight)`
    """
    exceeds = jax.nn.relu(x - y).sum(-1)
    return -(weight * jnp.expm1(-exceeds)).sum(-1)


@check_arguments
def interval_union(x: Array, y: Array) -> Array:
    """Length of the union of the intervals from x_d to y_d; those with y_d < x_d are empty.

    |union_d [x_d, max(x_d, y_d)]|

    Args: x, y: [..., D].
    Returns: [...], a quasimetric from x to y.
    Gradients: none are stopped.
    Source: Wang and Isola, 2022, "Improved representation of asymmetrical distances with interval
      quasimetric embeddings".
    Example: `losses.interval_union(x, y)`
    """
    x, y = jnp.broadcast_arrays(x, y)
    end = jnp.maximum(x, y)
    # The union's own ends are those that no other interval covers; where several begin or end
    # together, the first has it. Comparing all pairs is much faster than sorting.
    here, there = lambda a: a[..., :, None], lambda a: a[..., None, :]
    first = jnp.tri(x.shape[-1], k=-1, dtype=bool)
    begins_before = (there(x) < here(x)) | ((there(x) == here(x)) & first)
    ends_after = (there(end) > here(end)) | ((there(end) == here(end)) & first)
    left = ~(begins_before & (there(end) >= here(x))).any(-1)
    right = ~(ends_after & (there(x) <= here(end))).any(-1)
    length = (jnp.where(right, end, 0.0) - jnp.where(left, x, 0.0)).sum(-1)
    return jax.nn.relu(length)  # rounding of far ends could leave it just below 0


@check_arguments
def iqe(x: Array, y: Array, mix: Array | float) -> Array:
    """Interval quasimetric embedding (IQE): maximum and mean of lengths of unions of intervals.

    mix max_k c_k + (1 - mix) mean_k c_k, c_k = |union_d [x_kd, max(x_kd, y_kd)]|

    Args:
      x, y: [..., K, D], latents in K components.
      mix: weight of the maximum, in [0, 1] (a sigmoid of a parameter), broadcasts to [...].
    Returns: [...], the distance from x to y.
    Gradients: none are stopped.
    Source: Wang and Isola, 2022, "Improved representation of asymmetrical distances with interval
      quasimetric embeddings" (IQE-maxmean).
    Example: `losses.iqe(x, y, mix)`
    """
    components = interval_union(x, y)
    return mix * components.max(-1) + (1 - mix) * components.mean(-1)


@check_arguments
def quasimetric_push(
    distance: Array, offset: Array | float = 15.0, sharpness: Array | float = 0.1
) -> Array:
    """Objective of quasimetric RL (QRL): push random states and goals apart, up to a limit.

    softplus(sharpness (offset - distance)) / sharpness

    Args:
      distance: [...], from states to independently sampled goals.
      offset: larger than most true distances, broadcasts to [...].
      sharpness: how abruptly the push ends there, broadcasts to [...].
    Returns: [...]; decreases with the distance, by at most 1 per unit.
    Gradients: none are stopped.
    Source: Wang et al., 2023, "Optimal goal-reaching reinforcement learning via quasimetric
      learning" (with the defaults of the published code).
    Example: `losses.quasimetric_push(distance).mean()`
    """
    return jax.nn.softplus(sharpness * (offset - distance)) / sharpness


@check_arguments
def quasimetric_constraint(
    distance: Array,
    cost: Array | float,
    multiplier: Array | float,
    tolerance: Array | float = 0.25,
) -> Array:
    """Constraint of quasimetric RL (QRL): an observed step is no longer than its cost.

    multiplier (max(0, distance - cost)^2 - tolerance^2)

    The mean is the Lagrangian term to add to `quasimetric_push`. A single minimizer handles both
    sides of the saddle point, since the gradient into the multiplier is reversed.

    Args:
      distance: [...], from a state to the next one.
      cost: of the step, usually 1, broadcasts to [...].
      multiplier: nonnegative (a softplus of a parameter), broadcasts to [...].
      tolerance: epsilon, the allowed root of the mean squared excess.
    Returns: [...].
    Gradients: none flow into `cost`; those into `multiplier` are reversed, so that descent raises
      the multiplier while the constraint is violated.
    Source: Wang et al., 2023, "Optimal goal-reaching reinforcement learning via quasimetric
      learning".
    Example: `losses.quasimetric_constraint(distance, cost, multiplier).mean()`
    """
    excess = jax.nn.relu(distance - jax.lax.stop_gradient(cost))
    reversed_multiplier = scale_gradient(jnp.asarray(multiplier, excess.dtype), -1.0)
    return reversed_multiplier * (jnp.square(excess) - tolerance**2)
