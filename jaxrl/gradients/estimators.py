"""Gradients other than plain derivatives: scaled, straight-through, corrected, implicit."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = [
    "gumbel_softmax",
    "neumann_inverse",
    "recursive_momentum",
    "reptile_gradient",
    "scale_gradient",
    "straight_through",
]


def _zero_with_gradient(x: Array) -> Array:
    """Return exactly 0, with the derivative of x where x is finite."""
    return jnp.where(jnp.isfinite(x), x - jax.lax.stop_gradient(x), 0)


def scale_gradient(x: Array, scale: Array | float) -> Array:
    """Scale the gradient of a value without changing the value.

    x, with d/dx = scale

    Args:
      x: [...].
      scale: broadcasts to [...]; 0 stops the gradient, -1 reverses it.
    Returns: [...], `x`.
    Gradients: flow into `x` where it is finite, times `scale`; none flow into `scale`.
    Source: Schrittwieser et al., 2020, "Mastering Atari, Go, chess and shogi by planning with a
      learned model", appendix G.
    Example: `gradients.scale_gradient(x, scale=0.5)`
    """
    return jax.lax.stop_gradient(x) + jax.lax.stop_gradient(scale) * _zero_with_gradient(x)


def straight_through(value: Array, surrogate: Array) -> Array:
    """Straight-through estimator: one array's value with the gradient of a smooth surrogate.

    value, with the derivative of surrogate: stop(value - surrogate) + surrogate

    Args:
      value: [...], the value for the loss: a one-hot sample, a rounded latent.
      surrogate: [...], its smooth counterpart, such as the probabilities.
    Returns: [...], exactly `value`.
    Gradients: flow only into `surrogate`, where it is finite.
    Source: Bengio et al., 2013, "Estimating or propagating gradients through stochastic neurons
      for conditional computation"; Hafner et al., 2021, "Mastering Atari with discrete
      world models", algorithm 1 (one-hot latents).
    Example: `gradients.straight_through(value, surrogate)`
    """
    return jax.lax.stop_gradient(value) + _zero_with_gradient(surrogate)  # this order is exact


def recursive_momentum(
    momentum: Array,
    gradient: Array,
    old_gradient: Array,
    rate: Array | float,
    weight: Array | float = 1.0,
) -> Array:
    """STORM's gradient estimate: momentum, corrected for the last step of the parameters.

    gradient + (1 - rate) (momentum - weight old_gradient)

    Args:
      momentum: [..., P], the last estimate, at the old parameters.
      gradient: [..., P], of a new sample at the new parameters.
      old_gradient: [..., P], of the same sample at the old parameters.
      rate: in [0, 1], broadcasts to [...]; 1: only the new gradient.
      weight: broadcasts to [...], the old over the new policy's probability of the sample, which
        came from the new policy; 1 if the parameters do not affect sampling.
    Returns: [..., P], the next estimate, unbiased if `momentum` was.
    Gradients: none: this is an estimate.
    Source: Cutkosky and Orabona, 2019, "Momentum-based variance reduction in non-convex SGD",
      algorithm 1; in reinforcement learning Yuan et al., 2020, "Stochastic recursive momentum for
      policy gradient methods"; Barakat et al., 2023, "Reinforcement learning with general
      utilities".
    Example: `gradients.recursive_momentum(momentum, gradient, old_gradient, rate=0.1)`
    """
    rate, weight = jnp.expand_dims(rate, -1), jnp.expand_dims(weight, -1)
    return jax.lax.stop_gradient(gradient + (1 - rate) * (momentum - weight * old_gradient))


def neumann_inverse(
    hessian_vector_product: Callable[[Array], Array], vector: Array, step: float, terms: int
) -> Array:
    """Inverse-Hessian-vector product by a Neumann series, for gradients through an inner optimum.

    step sum_(j < terms) (1 - step H)^j vector, which converges to H^-1 vector

    Implicit differentiation of an outer loss F of w*(h) = argmin_w L(w, h), as in BARFI:
    dF/dh = partial_h F - (d^2 L / dh dw) H^-1 partial_w F, H the Hessian of L in w at w*.

    Args:
      hessian_vector_product: v -> H v, linear, e.g. by jax.jvp of jax.grad(L).
      vector: [...], the input of H, such as the outer loss's gradient.
      step: positive, below 2 / (H's largest eigenvalue); H's eigenvalues must be positive.
      terms: number of terms of the series; the error falls like (1 - step * eigenvalue)^terms.
    Returns: [...].
    Gradients: none are stopped.
    Source: Lorraine et al., 2020, "Optimizing millions of hyperparameters by implicit
      differentiation", algorithm 3; Gupta et al., 2023, "Behavior alignment via reward function
      optimization" (BARFI).
    Example: `gradients.neumann_inverse(hessian_vector_product, vector, step=0.1, terms=20)`
    """

    def add(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        total, term = state
        return total + term, term - step * hessian_vector_product(term)

    total, _ = jax.lax.fori_loop(0, terms, add, (jnp.zeros_like(vector), vector))
    return step * total


def reptile_gradient(parameter: Array, adapted: Array) -> Array:
    """Reptile's meta-gradient, toward the parameters adapted to tasks.

    parameter - mean_n adapted_n

    Args:
      parameter: [...], the initialization; for jax.tree.map.
      adapted: [..., N], the parameters after training from there on each of N tasks.
    Returns: [...], for an optimizer: with learning rate e, parameter + e (mean - parameter).
    Gradients: none: this is a gradient.
    Source: Nichol et al., 2018, "On first-order meta-learning algorithms", algorithms 1 and 2.
    Example: `gradients.reptile_gradient(parameter, adapted)`
    """
    return jax.lax.stop_gradient(parameter - adapted.mean(-1))


def gumbel_softmax(logits: Array, gumbel: Array, temperature: Array | float) -> Array:
    """Relaxed sample of a token (Gumbel-softmax), through which gradients can flow.

    softmax((logits + gumbel) / temperature)

    Args:
      logits: [..., A]; -inf where impossible.
      gumbel: [..., A], noise -log(-log(uniform)); the largest entry is an exact sample.
      temperature: positive, broadcasts to [...]; toward 0 the result is one-hot.
    Returns: [..., A], probabilities.
    Gradients: none flow into `gumbel`.
    Source: Jang et al., 2017, "Categorical reparameterization with Gumbel-softmax", eq. 2; Maddison
      et al., 2017, "The concrete distribution".
    Example: `gradients.gumbel_softmax(logits, gumbel, temperature=0.5)`
    """
    noisy = logits + jax.lax.stop_gradient(gumbel)
    return jax.nn.softmax(noisy / jnp.expand_dims(temperature, -1))
