"""Value transforms with their inverses, and two-hot encodings of scalars."""

from __future__ import annotations

import math

import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.values.errors_and_targets import squared_error

__all__ = [
    "logarithmic",
    "logarithmic_inverse",
    "signed_hyperbolic",
    "signed_parabolic",
    "symexp",
    "symlog",
    "symlog_squared_error",
    "two_hot",
    "two_hot_inverse",
]


def _sign_and_size(x: Array) -> tuple[Array, Array]:
    """Split x into sign * size; the sign of 0 is 1, so that odd functions keep their slope at 0."""
    negative = x < 0
    return jnp.where(negative, -1, 1).astype(x.dtype), jnp.where(negative, -x, x)


@check_arguments
def signed_hyperbolic(x: Array, epsilon: float = 1e-3) -> Array:
    """Squash values of any sign to roughly their square root, as MuZero and R2D2 do.

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, computed as x / (sqrt(|x| + 1) + 1) + epsilon x

    Args:
      x: [...].
      epsilon: slope of the linear part, which keeps the inverse from growing too fast.
    Returns: [...].
    Gradients: none are stopped.
    Source: Pohlen et al., 2018, "Observe and look further: achieving consistent performance on
      Atari", proposition A.2.
    Example: `losses.signed_hyperbolic(x)`
    """
    return x / (jnp.sqrt(_sign_and_size(x)[1] + 1) + 1) + epsilon * x


@check_arguments
def signed_parabolic(x: Array, epsilon: float = 1e-3) -> Array:
    """Undo `signed_hyperbolic`.

    h^-1(x) = sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1),
    computed as sign(x) u (u + 2), u = 2 |x| / (b + sqrt(b^2 + 4 epsilon |x|)), b = 1 + 2 epsilon

    Args:
      x: [...].
      epsilon: that of `signed_hyperbolic`; 0 is allowed.
    Returns: [...].
    Gradients: none are stopped.
    Source: Pohlen et al., 2018, "Observe and look further: achieving consistent performance on
      Atari", proposition A.2; the form without cancellation near 0 is derived here, u + 1 being
      the root of epsilon s^2 + s = |x| + 1 + epsilon.
    Example: `losses.signed_parabolic(x)`
    """
    sign, size = _sign_and_size(x)
    linear = 1 + 2 * epsilon
    u = 2 * size / (linear + jnp.sqrt(linear**2 + 4 * epsilon * size))
    return sign * u * (u + 2)


@check_arguments
def symlog(x: Array) -> Array:
    """Squash values of any sign to roughly their logarithm, as Dreamer v3 does.

    symlog(x) = sign(x) log(1 + |x|)

    Args: x: [...].
    Returns: [...].
    Gradients: none are stopped; the slope at 0 is 1.
    Source: Hafner et al., 2023, "Mastering diverse domains through world models".
    Example: `losses.symlog(x)`
    """
    sign, size = _sign_and_size(x)
    return sign * jnp.log1p(size)


@check_arguments
def symexp(x: Array) -> Array:
    """Undo `symlog`.

    symexp(x) = sign(x) (exp(|x|) - 1)

    Args: x: [...].
    Returns: [...]; infinite where |x| exceeds about 88 in float32.
    Gradients: none are stopped; the slope at 0 is 1.
    Source: Hafner et al., 2023, "Mastering diverse domains through world models".
    Example: `losses.symexp(x)`
    """
    sign, size = _sign_and_size(x)
    return sign * jnp.expm1(size)


@check_arguments
def logarithmic(x: Array, resolution: float, scale: float = 1.0) -> Array:
    """Map nonnegative values to a logarithmic scale that preserves small differences.

    f(x) = scale * (log(x + resolution) - log(resolution)) = scale * log(1 + x / resolution)

    Args:
      x: [...], nonnegative (values of positive and of negative rewards are learned separately);
        negative values count as 0.
      resolution: positive; below it the map is roughly linear. The paper uses gamma^k.
      scale: c of the paper.
    Returns: [...], 0 at 0.
    Gradients: none are stopped; 0 below 0.
    Source: van Seijen et al., 2019, "Using a logarithmic mapping to enable lower discount factors
      in reinforcement learning" (with the constant that makes f(0) = 0).
    Example: `losses.logarithmic(x, resolution=0.1)`
    """
    return scale * jnp.log1p(jnp.where(x < 0, 0, x) / resolution)


@check_arguments
def logarithmic_inverse(x: Array, resolution: float, scale: float = 1.0) -> Array:
    """Undo `logarithmic`.

    f^-1(x) = resolution * (exp(x / scale) - 1)

    Args:
      x: [...].
      resolution, scale: those of `logarithmic`.
    Returns: [...]; constant where x / scale is above about 80 (in float32), to stay finite.
    Gradients: none are stopped; 0 where it is constant.
    Source: van Seijen et al., 2019, "Using a logarithmic mapping to enable lower discount factors
      in reinforcement learning".
    Example: `losses.logarithmic_inverse(x, resolution=0.1)`
    """
    largest = 0.9 * math.log(float(jnp.finfo(x.dtype).max))
    return resolution * jnp.expm1(jnp.minimum(x / scale, largest))


@check_arguments
def symlog_squared_error(prediction: Array, target: Array) -> Array:
    """Squared error in symlog space, where large targets do not dominate.

    (prediction - symlog(target))^2 / 2; symexp(prediction) is the predicted quantity

    Args: prediction, target: [...].
    Returns: [...].
    Gradients: none flow into `target`.
    Source: Hafner et al., 2023, "Mastering diverse domains through world models".
    Example: `losses.symlog_squared_error(prediction, target).mean()`
    """
    return squared_error(prediction, symlog(target))


@check_arguments
def two_hot(x: Array, atoms: Array) -> Array:
    """Encode a scalar as weights on its two neighbors in a support, whose mean is the scalar.

    w_i = max(1 - max((a_i - x) / (a_i - a_(i-1)), (x - a_i) / (a_(i+1) - a_i)), 0); scalars
    beyond an end of the support are clipped to that end.

    Args:
      x: [...].
      atoms: [K], strictly increasing, at any distances (MuZero: integers; Dreamer v3: symexp of
        equally spaced numbers).
    Returns: [..., K], probabilities, at most two of them positive.
    Gradients: none are stopped.
    Source: Schrittwieser et al., 2020, "Mastering Atari, Go, chess and shogi by planning with a
      learned model", appendix F; Hafner et al., 2023, "Mastering diverse domains through
      world models".
    Example: `losses.two_hot(x, atoms)`
    """
    distance = x[..., None] - atoms
    left, right = _support_slopes(atoms)
    return jnp.maximum(1 - jnp.maximum(distance * left, distance * right), 0)


def _support_slopes(atoms: Array) -> tuple[Array, Array]:
    """Return the slopes of a weight on either side of its atom, 0 beyond the ends."""
    slope = 1 / jnp.diff(atoms)
    return jnp.pad(-slope, (1, 0)), jnp.pad(slope, (0, 1))


@check_arguments
def two_hot_inverse(probs: Array, atoms: Array) -> Array:
    """Decode a scalar from weights on a support: their mean.

    sum_i p_i a_i, summed in pairs from both ends: exactly 0 for symmetric weights on a symmetric
    support, however far the atoms reach

    Args:
      probs: [..., K], e.g. from `two_hot` or a softmax.
      atoms: [K].
    Returns: [...].
    Gradients: none are stopped.
    Source: Schrittwieser et al., 2020, "Mastering Atari, Go, chess and shogi by planning with a
      learned model", appendix F; Hafner et al., 2023, "Mastering diverse domains through
      world models" (the order of the sum).
    Example: `losses.two_hot_inverse(probs, atoms)`
    """
    products = probs * atoms
    return 0.5 * (products + products[..., ::-1]).sum(-1)
