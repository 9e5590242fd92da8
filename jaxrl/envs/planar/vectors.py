"""Vectors in the plane, as arrays whose last axis holds the two coordinates."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array

Number = Array | float

TINY = 1e-9  # keeps norms and their gradients finite where there is no direction


def norm(vector: Array) -> Array:
    """Return the length of `vector` [..., 2]; its gradient at zero is zero."""
    return jnp.sqrt(jnp.sum(jnp.square(vector), -1) + TINY**2)


def cross(a: Array, b: Array) -> Array:
    """Return the third component of a x b for vectors [..., 2]."""
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def perpendicular(vector: Array) -> Array:
    """Turn `vector` [..., 2] counterclockwise by a quarter turn."""
    return jnp.stack([-vector[..., 1], vector[..., 0]], -1)


def rotate(vector: Array, angle: Array) -> Array:
    """Turn `vector` [..., 2] counterclockwise by `angle`."""
    return jnp.cos(angle) * vector + jnp.sin(angle) * perpendicular(vector)


def cap_length(vector: Array, length: Number) -> Array:
    """Shorten `vector` [2] to `length` if it is longer."""
    return vector * jnp.minimum(1.0, length / norm(vector))
