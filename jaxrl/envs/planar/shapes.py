"""Properties of motion that follow from the outline of a body resting on a table."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, struct
from jaxrl.envs.planar import vectors
from jaxrl.envs.planar.vectors import Number

CORNERS = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]], np.float32)  # of a square, in half sides


@struct
class Shape:
    """Body made of K rectangles, or a disc if K is 0, with uniform density and uniform pressure on
    the table."""

    offsets: Array  # [K, 2] m, centers of its rectangles from the center of mass
    halves: Array  # [K, 2] m, half sides of its rectangles
    inverse_inertia: Array  # 1/(kg m^2), about the center of mass
    reach: Array  # m, mean distance from the center of mass, see `free_bodies.slide`
    radius: Array  # m, from the center of mass to the furthest point


def disc(radius: Number, mass: Number) -> Shape:
    """Build a disc: inertia m R^2 / 2, mean distance 2 R / 3."""
    radius = jnp.asarray(radius, jnp.float32)
    none = jnp.zeros((0, 2))
    return Shape(none, none, 2 / (mass * radius**2), 2 * radius / 3, radius)


def boxes(parts: Array, mass: Number) -> Shape:
    """Join rectangles `parts` [K, 4] (center and half sides; they must not overlap) to one body.
    The origin of their centers may lie anywhere."""
    centers, halves = parts[:, :2], parts[:, 2:]
    areas = 4 * halves.prod(-1)
    share = areas / areas.sum()
    offsets = centers - share @ centers
    second_moment = share @ ((halves**2).sum(-1) / 3 + (offsets**2).sum(-1))
    corners = offsets[:, None] + halves[:, None] * CORNERS
    # The integral over a rectangle, from those between the origin and its four corners.
    integrals = (_distance_integral(corners) * CORNERS.prod(-1)).sum(-1)
    return Shape(
        offsets,
        halves,
        1 / (mass * second_moment),
        integrals.sum() / areas.sum(),
        vectors.norm(corners).max(),
    )


def _distance_integral(corner: Array) -> Array:
    """Integrate the distance from the origin over the rectangle between it and `corner` [..., 2];
    negative in the second and fourth quadrant."""
    a, b = jnp.moveaxis(jnp.abs(corner) + 1e-6, -1, 0)
    diagonal = jnp.sqrt(a**2 + b**2)
    whole = (
        a * b * diagonal / 3
        + a**3 / 6 * jnp.log((b + diagonal) / a)
        + b**3 / 6 * jnp.log((a + diagonal) / b)
    )
    return whole * jnp.sign(corner).prod(-1)
