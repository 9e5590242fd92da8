"""Spatial vectors of the plane (Featherstone, 2008, Rigid Body Dynamics Algorithms, chapter 2), as
tuples of scalars.

A motion is (w, x, z): the angular velocity about +y, and the velocity of the body's point at the
origin. A force is (moment, x, z). A symmetric 3x3 matrix is the tuple of its entries 00, 01, 02,
11, 12, 22.
"""

from __future__ import annotations

from typing import Any

Vector = tuple[Any, Any, Any]  # a planar spatial motion or force
Matrix = tuple[Any, Any, Any, Any, Any, Any]


def rigid(
    mass: Any, inertia: Any, x: Any, z: Any, motion: Vector, gravity: Any
) -> tuple[Matrix, Vector]:
    """Return the spatial inertia of a link with its center of mass at (x, z), and the force that
    keeps its velocity constant: v x* I v (table 7.1), less gravity."""
    mx, mz = mass * x, mass * z
    turning, vx, vz = motion
    px, pz = mass * vx + mz * turning, mass * vz - mx * turning  # linear momentum
    bias = (vz * px - vx * pz - mx * gravity, turning * pz, mass * gravity - turning * px)
    return (inertia + mx * x + mz * z, mz, -mx, mass, 0.0, mass), bias


def cross(a: Vector, b: Vector) -> Vector:
    """Return the product of two motions, a x b."""
    return 0.0, a[0] * b[2] - b[0] * a[2], b[0] * a[1] - a[0] * b[1]


def add(a: Any, b: Any) -> Any:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def subtract(a: Any, b: Any) -> Any:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def scale(a: Any, factor: Any) -> Any:
    return tuple(x * factor for x in a)


def dot(a: Vector, b: Vector) -> Any:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def outer(a: Vector) -> Matrix:
    return a[0] * a[0], a[0] * a[1], a[0] * a[2], a[1] * a[1], a[1] * a[2], a[2] * a[2]


def times(m: Matrix, a: Vector) -> Vector:
    return (
        m[0] * a[0] + m[1] * a[1] + m[2] * a[2],
        m[1] * a[0] + m[3] * a[1] + m[4] * a[2],
        m[2] * a[0] + m[4] * a[1] + m[5] * a[2],
    )


def solve(m: Matrix, b: Vector) -> Vector:
    """Solve m a = b for a positive definite m."""
    # Eliminate the translations first: their block is better conditioned.
    inverse = 1.0 / m[5]
    k0, k1 = m[2] * inverse, m[4] * inverse
    m00, m01, m11 = m[0] - k0 * m[2], m[1] - k0 * m[4], m[3] - k1 * m[4]
    b0, b1 = b[0] - k0 * b[2], b[1] - k1 * b[2]
    k = m01 / m11
    w = (b0 - k * b1) / (m00 - k * m01)
    x = (b1 - m01 * w) / m11
    return w, x, (b[2] - m[2] * w - m[4] * x) * inverse
