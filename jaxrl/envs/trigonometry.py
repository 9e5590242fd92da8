"""Sine and cosine in float32 that vectorize on a CPU, where XLA's call a scalar function."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array

# pi/2 in three parts whose multiples up to a few thousand are exact (Cody and Waite, 1980).
_PARTS = np.array([1.5703125, 4.837512969970703e-4, 7.54978995489188e-8], np.float32)


def sin_cos(angle: Array) -> tuple[Array, Array]:
    """Return sine and cosine of an angle of up to a few thousand radians, to 1e-7. Minimax
    polynomials within an eighth of a turn, with the constants of the Cephes library (Moshier,
    1989)."""
    quarter = jnp.round(angle * np.float32(2 / np.pi))
    for part in _PARTS:
        angle = angle - quarter * part
    square = angle * angle
    sin = 8.3321608736e-3 - 1.9515295891e-4 * square
    sin = angle + angle * square * (-1.6666654611e-1 + square * sin)
    cos = -1.388731625493765e-3 + 2.443315711809948e-5 * square
    cos = 1 - 0.5 * square + square * square * (4.166664568298827e-2 + square * cos)
    turns = quarter.astype(jnp.int32)
    odd = turns & 1 != 0
    return (
        jnp.where(odd, cos, sin) * jnp.where(turns & 2 != 0, -1.0, 1.0),
        jnp.where(odd, sin, cos) * jnp.where((turns + 1) & 2 != 0, -1.0, 1.0),
    )
