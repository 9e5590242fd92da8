"""Steps from a gradient to new parameters: clipping, step sizes, mixtures of parameters."""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = [
    "clip_norm",
    "natural_gradient_step",
    "parameter_soup",
    "polyak_step_size",
]


def clip_norm(gradient: Array, largest: Array | float) -> Array:
    """Shorten a gradient to a maximum length.

    gradient min(1, largest / |gradient|)

    Args:
      gradient: [..., P].
      largest: positive, broadcasts to [...].
    Returns: [..., P].
    Gradients: none are stopped.
    Source: Pascanu et al., 2013, "On the difficulty of training recurrent neural networks",
      algorithm 1.
    Example: `gradients.clip_norm(gradient, largest=1.0)`
    """
    # Divide by the largest entry first, so that squares neither overflow nor vanish.
    peak = jax.lax.stop_gradient(jnp.abs(gradient).max(-1, keepdims=True, initial=0))
    peak = jnp.where(peak > 0, peak, 1)
    square = jnp.square(gradient / peak).sum(-1, keepdims=True)
    length = jnp.sqrt(jnp.where(square > 0, square, 1))  # in units of the largest entry
    limit = jnp.expand_dims(largest, -1)
    long = (square > 0) & (peak * length > limit)
    limit = jnp.where(long, limit, 1)  # may be infinite
    return jnp.where(long, gradient / peak / length * limit, gradient)


def parameter_soup(parameters: Array, weight: Array) -> Array:
    """Model soup: weighted mean of the parameters of networks fine-tuned from the same one.

    sum_n weight_n parameters_n / sum_n weight_n

    Args:
      parameters: [..., N], of N networks; for jax.tree.map over stacked trees.
      weight: broadcasts to [..., N]; its sum is not 0.
    Returns: [...].
    Gradients: none are stopped.
    Source: Rame et al., 2023, "Rewarded soups: towards Pareto-optimal alignment by interpolating
      weights fine-tuned on diverse rewards"; Wortsman et al., 2022, "Model soups"; Chegini et al.,
      2024, "SALSA: soup-based alignment learning for stronger adaptation in RLHF".
    Example: `gradients.parameter_soup(parameters, weight)`
    """
    return (parameters * weight).sum(-1) / weight.sum(-1)


def natural_gradient_step(
    fisher_vector_product: Callable[[chex.ArrayTree], chex.ArrayTree],
    gradient: chex.ArrayTree,
    max_kl: Array | float,
    iterations: int = 10,
    damping: float = 0.0,
) -> chex.ArrayTree:
    """TRPO's step along the natural gradient, as far as a KL bound allows.

    -sqrt(2 max_kl / (x^T F x)) x, F x = gradient, solved by conjugate gradients

    Args:
      fisher_vector_product: v -> F v, F the Fisher matrix or the Hessian of the mean divergence
        from the old policy at that policy; linear, on trees like `gradient`.
      gradient: any tree of arrays, the loss's gradient with respect to the parameters.
      max_kl: delta, the divergence of the step, to second order.
      iterations: maximum number of conjugate-gradient iterations.
      damping: added to F's diagonal.
    Returns: a tree like `gradient`, to add to the parameters; 0 where the gradient is 0.
    Gradients: none flow through the step.
    Source: Schulman et al., 2015, "Trust region policy optimization", appendix C; Kakade, 2001,
      "A natural policy gradient".
    Example: `gradients.natural_gradient_step(fisher_vector_product, gradient, max_kl=0.01)`
    """

    def damped_product(v):
        return jax.tree.map(lambda f, v: f + damping * v, fisher_vector_product(v), v)

    gradient = jax.lax.stop_gradient(gradient)
    direction, _ = jax.scipy.sparse.linalg.cg(damped_product, gradient, maxiter=iterations)
    products = jax.tree.map(lambda x, f: (x * f).sum(), direction, damped_product(direction))
    curvature = sum(jax.tree.leaves(products))
    curved = curvature > 0
    size = jnp.where(curved, jnp.sqrt(2 * max_kl / jnp.where(curved, curvature, 1)), 0)
    return jax.lax.stop_gradient(jax.tree.map(lambda x: -size.astype(x.dtype) * x, direction))


def polyak_step_size(
    value: Array,
    best_value: Array,
    squared_norm: Array,
    maximum: Array | float,
    scale: Array | float = 1.0,
) -> Array:
    """Polyak's step size for a policy gradient, larger the more there is to gain.

    min((best_value - value) / (scale * squared_norm), maximum), nonnegative

    Args:
      value: [...], the policy's return.
      best_value: [...], the optimum, or an estimate such as a twin policy's return. Where it is
        below `value` the step is 0 (our choice: the plain ratio would step downhill).
      squared_norm: [...], the squared norm of the return's gradient.
      maximum: the longest step, which is also taken where the gradient is 0.
      scale: c.
    Returns: [...], the step to take along the gradient.
    Gradients: none flow into any argument.
    Source: Li et al., 2024, "Enhancing policy gradient with the Polyak step-size adaption".
    Example: `gradients.polyak_step_size(value, best_value, squared_norm, maximum=1.0)`
    """
    gap, squared_norm = jax.lax.stop_gradient((jnp.maximum(best_value - value, 0), squared_norm))
    slope = scale * squared_norm
    sloped = slope > 0
    return jnp.where(sloped, jnp.minimum(gap / jnp.where(sloped, slope, 1), maximum), maximum)
