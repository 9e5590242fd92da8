"""Spheres of planar bodies on flat ground at z = 0.

Normal force: N = k d (1 + c d'), with d the depth and d' its rate (Hunt and Crossley, 1975), never
pulling. Friction: Coulomb's with the jump at rest smoothed, -mu N v / sqrt(v^2 + slip^2), so that
what sticks creeps, slower than `slip`; its N is the elastic part k d alone, whose impulse over one
contact equals that of the whole. Both act with the force after the step, to first order in the
acceleration, so stiff ground is stable at any step length, and a sphere that reaches the ground
within a step is pushed in that step: it cannot gain the energy of a depth that it fell to freely.
If a sphere is thrown up faster than predicted, the linear force may pull for the rest of that step.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxrl.core.types import struct


@struct
class Touch:
    """Action of the ground on a link: `force` less `resistance` times its acceleration."""

    force: Any  # a planar spatial force
    resistance: Any  # a symmetric 3x3 matrix


def ground(physics: Any, index: int, pose: Any, height: Any, motion: Any, dt: Any) -> Touch:
    """Compute the action of the ground on the sphere `index`, on a link at `pose` that moves with
    `motion`, all relative to a frame whose origin is at `height`."""
    x, z = pose.at(physics.feeler[index])
    z = z - physics.radius[index]  # the sphere's lowest point
    depth = -(height + z)  # negative above the ground, which the sphere may reach in this step
    turning, vx, vz = motion
    vx, vz = vx + turning * z, vz - turning * x
    elastic = physics.ground_stiffness * jnp.maximum(depth, 0.0)
    damper = physics.ground_damping * elastic + dt * physics.ground_stiffness
    normal = physics.ground_stiffness * depth - damper * vz
    pushing = normal > 0.0
    normal = jnp.where(pushing, normal, 0.0)
    damper = jnp.where(pushing, damper, 0.0)
    drag = physics.friction[index] * elastic * lax.rsqrt(vx * vx + physics.slip * physics.slip)
    tangential = -drag * vx
    across, along = dt * damper, dt * drag
    force = (z * tangential - x * normal, tangential, normal)
    resistance = (
        along * z * z + across * x * x,
        along * z,
        -across * x,
        along,
        0.0,
        across,
    )
    return Touch(force, resistance)


def depths(physics: Any, links: tuple[int, ...], places: Any) -> list[Any]:
    """Return the depth of each sphere in the ground (negative above it); `places` are poses in the
    inertial frame."""
    return [
        physics.radius[i] - places[link].at(physics.feeler[i])[1] for i, link in enumerate(links)
    ]
