"""Discs and boxes that move freely in a plane: mechanics shared by point masses, mazes and the
pushing table.

Contacts are rigid: at a touch an impulse changes the velocities at once (Newton's restitution,
Coulomb's friction), and bodies that still overlap are moved apart. So a step is differentiable
between touches, and the gradient through a touch is that of the impulse; it ignores that a small
change of the past might have avoided or advanced the touch. Nothing here loops over walls or
bodies.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, struct
from jaxrl.envs.planar.vectors import TINY, Number, cross, norm, perpendicular, rotate

# Fraction of its radius that a body may move in a step, so that it passes through nothing.
LARGEST_MOVE = 0.95


@struct
class Body:
    """Rigid body. Bodies that cannot move have inverse mass and inverse inertia 0."""

    position: Array  # [2] m, of the center of mass
    angle: Array  # rad
    velocity: Array  # [2] m/s
    spin: Array  # rad/s
    inverse_mass: Number = 0.0  # 1/kg
    inverse_inertia: Number = 0.0  # 1/(kg m^2), about the center of mass


@struct
class Contact:
    """Contact at which two bodies touch or would touch; it has no effect unless `depth` is
    positive."""

    depth: Array  # m, overlap of the bodies
    normal: Array  # [2] unit vector from the first body to the second
    point: Array  # [2] m


def fixed_body(position: Array) -> Body:
    """Build a body that nothing moves."""
    return Body(position, jnp.zeros(()), jnp.zeros(2), jnp.zeros(()))


# ------------------------------------------------------------------------------ free motion


def drive(velocity: Array, force: Array, mass: Number, damping: Number, dt: Number) -> Array:
    """Return the velocity after `dt` under a constant force and viscous damping (N s/m), by the
    implicit Euler step v' = (m v + dt F) / (m + dt c), as in MuJoCo's Euler integrator for damped
    joints.

    After n steps from v: v_n = F/c + (v - F/c) q^n with q = m / (m + dt c).
    """
    return (mass * velocity + dt * force) / (mass + dt * damping)


def slide(body: Body, grip: Number, reach: Number, dt: Number) -> Body:
    """Slide `body` over a table for `dt`, with Coulomb friction.

    grip: friction coefficient times gravity (m/s^2), the deceleration of a body that does not turn.
    reach: m, the largest friction torque over the largest friction force: the mean distance of the
        supporting points from the center of mass (2/3 R for a disc that rests evenly).

    Force and torque lie on an ellipse (the limit surface of Goyal, Ruina and Papadopoulos 1991, in
    the ellipsoidal form of Lynch, Maekawa and Tanie 1992) with the motion normal to it:
    dv/dt = -grip v / s and dw/dt = -grip (m reach^2 / I) w / s, where s^2 = v^2 + (reach w)^2.
    Without spin the distance slid is exact for any `dt`: v^2 / (2 grip) to a stop. Friction never
    reverses a motion. Differentiable except at the stop.
    """
    slip = jnp.sqrt(jnp.sum(body.velocity**2) + (reach * body.spin) ** 2 + TINY**2)
    rate = grip / slip
    turn_rate = rate * reach**2 * body.inverse_inertia / jnp.maximum(body.inverse_mass, TINY)
    moving, after = _brake(rate, dt)
    turning, after_turn = _brake(turn_rate, dt)
    return dataclasses.replace(
        body,
        position=body.position + body.velocity * (1 + after) / 2 * moving,
        velocity=body.velocity * after,
        angle=body.angle + body.spin * (1 + after_turn) / 2 * turning,
        spin=body.spin * after_turn,
    )


def _brake(rate: Array, dt: Number) -> tuple[Array, Array]:
    """Brake a speed that falls by the fraction `rate` of itself per second until it is zero: return
    the time in motion within `dt`, and the fraction of the speed that is left after it."""
    moving = jnp.minimum(dt, 1 / jnp.maximum(rate, TINY))
    return moving, jnp.maximum(0.0, 1 - rate * dt)


# ------------------------------------------------------------------------------ contacts


def disc_disc(first: Array, first_radius: Number, second: Array, second_radius: Number) -> Contact:
    """Find the contact of two discs with the given centers [2]."""
    between = second - first
    distance = norm(between)
    normal = between / distance
    return Contact(first_radius + second_radius - distance, normal, first + first_radius * normal)


def disc_box(center: Array, radius: Number, box: Body, offset: Array, half: Array) -> Contact:
    """Find the contact of a disc and a rectangle that is part of `box`, with its center at `offset`
    [2] from the center of mass and half sides `half` [2], in the body's own frame. Also correct if
    the disc's center is inside the rectangle: it leaves by the nearest side."""
    local = rotate(center - box.position, -box.angle) - offset
    nearest = jnp.clip(local, -half, half)
    between = nearest - local
    distance = norm(between)
    gap = half - jnp.abs(local)
    side = jnp.where(local < 0, -1.0, 1.0)
    inside = (gap > 0).all()
    across = (gap <= gap.min()) * side  # the nearest side, from the inside
    across = across / norm(across)
    normal = jnp.where(inside, -across, between / distance)
    depth = radius + jnp.where(inside, gap.min(), -distance)
    point = jnp.where(inside, local + gap.min() * across, nearest)
    return Contact(
        depth,
        rotate(normal, box.angle),
        box.position + rotate(point + offset, box.angle),
    )


def deepest(contacts: Contact) -> Contact:
    """Return the deepest of several contacts, given by fields with a leading axis."""
    chosen = jnp.argmax(contacts.depth)
    return jax.tree.map(lambda x: x[chosen], contacts)


def walls_of_table(points: Array, radius: Number, half: Array) -> tuple[Contact, Contact]:
    """Find the contacts of a body, given by `points` [N, 2] (corners, or the center of a disc of
    `radius`), with the left or right wall and with the lower or upper wall of a table with half
    sides `half` [2].

    Several points in one wall act as one, at their mean weighted by depth, so that a box lies flat
    against a wall without rocking.
    """

    def contact(axis: int) -> Contact:
        outside = jnp.maximum(jnp.abs(points[:, axis]) - (half[axis] - radius), 0.0)
        side = jnp.where(jnp.sum(outside * points[:, axis]) < 0, -1.0, 1.0)
        weights = outside / jnp.maximum(outside.sum(), TINY)
        normal = jnp.zeros(2).at[axis].set(side)
        return Contact(outside.max(), normal, weights @ points + radius * normal)

    return contact(0), contact(1)


def collide(
    first: Body, second: Body, contact: Contact, restitution: Number, friction: Number
) -> tuple[Body, Body]:
    """Return both bodies after the impulse of `contact`, moved apart by its depth.

    The normal impulse sets their relative normal velocity to -restitution times the one before;
    then the tangential impulse stops their sliding on each other as far as Coulomb's cone allows.
    """
    arms = contact.point - first.position, contact.point - second.position
    bodies = first, second
    velocity = [
        body.velocity + body.spin * perpendicular(arm)
        for body, arm in zip(bodies, arms, strict=True)
    ]
    relative = velocity[1] - velocity[0]

    def response(direction: Array) -> Array:
        """Return the change [2] of the relative velocity for a unit impulse along `direction`."""
        return direction * (first.inverse_mass + second.inverse_mass) + sum(
            body.inverse_inertia * cross(arm, direction) * perpendicular(arm)
            for body, arm in zip(bodies, arms, strict=True)
        )

    # First the normal impulse, then the tangential one from the motion after it: each loses energy.
    normal, tangent = contact.normal, perpendicular(contact.normal)
    answer, along = response(normal), response(tangent) @ tangent
    closing = jnp.maximum(0.0, -(relative @ normal)) * (contact.depth > 0)
    push = (1 + restitution) * closing / (answer @ normal + TINY)
    most = friction * push
    rub = jnp.clip(-((relative + push * answer) @ tangent) / (along + TINY), -most, most)
    impulse = push * normal + rub * tangent
    apart = jnp.maximum(contact.depth, 0.0) * normal
    total = first.inverse_mass + second.inverse_mass + TINY

    def with_impulse(body: Body, arm: Array, sign: float) -> Body:
        return dataclasses.replace(
            body,
            position=body.position + sign * apart * body.inverse_mass / total,
            velocity=body.velocity + sign * impulse * body.inverse_mass,
            spin=body.spin + sign * cross(arm, impulse) * body.inverse_inertia,
        )

    return with_impulse(first, arms[0], -1.0), with_impulse(second, arms[1], 1.0)


def push_out_of_cells(
    position: Array,
    velocity: Array,
    walls: Array,
    cell: Number,
    radius: Number,
    restitution: Number,
) -> tuple[Array, Array]:
    """Move a disc out of the solid cells of a maze: return its position and velocity [2] after the
    contact, without friction.

    walls [H, W]: nonzero where a cell is solid; the maze is centered, with row 0 at the top (y up).
    cell: side of a cell (m); `radius` must be less than half of it.

    A disc in a free cell can touch only what lies in the quadrant of its center: the cell beside,
    the cell above or below, and the cell at the corner between them. So three cells are looked up,
    whatever the size of the maze. Afterward the disc cannot be inside a wall if it was in none
    before and moved by less than its radius.
    """
    height, width = walls.shape
    down = jnp.asarray([1.0, -1.0])  # from (x, y up) to (column, row down), and back
    place = position * down / cell + jnp.asarray([width / 2, height / 2])
    column, row = jnp.floor(place).astype(jnp.int32)
    offset = place - jnp.floor(place) - 0.5  # from the cell's center, in cells
    side = jnp.where(offset < 0, -1.0, 1.0)
    across, along = side.astype(jnp.int32)

    table = walls.reshape(-1)

    def solid(row: Array, column: Array) -> Array:
        # The border is solid, so no index is out of range.
        return table.at[row * width + column].get(mode="clip") != 0

    faces = jnp.stack([solid(row, column + across), solid(row + along, column)])
    corner = solid(row + along, column + across) & ~faces.any()

    reach = radius / cell
    gap = 0.5 - jnp.abs(offset)  # to the two sides of the cell, in cells
    distance = norm(gap)
    depth = jnp.maximum(reach - gap, 0.0) * faces
    corner_depth = jnp.maximum(reach - distance, 0.0) * corner
    outward = gap / distance
    position = position - side * down * cell * (depth + corner_depth * outward)

    # At faces, each component separately; at a corner, along the line to it.
    velocity = velocity * side * down  # both components positive toward the walls
    velocity = jnp.where((depth > 0) & (velocity > 0), -restitution * velocity, velocity)
    toward = jnp.maximum(velocity @ outward, 0.0) * (corner_depth > 0)
    velocity = velocity - (1 + restitution) * toward * outward
    return position, velocity * side * down
