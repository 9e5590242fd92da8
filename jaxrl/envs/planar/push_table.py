"""Contacts of the pusher and the object of the pushing table; `params` are `push.Params`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array
from jaxrl.envs.planar import free_bodies, shapes, vectors
from jaxrl.envs.planar.free_bodies import Body, Contact
from jaxrl.envs.planar.shapes import Shape
from jaxrl.envs.planar.vectors import Number


def resolve_contacts(pusher: Body, target: Body, shape: Shape, params: Any) -> tuple[Body, Body]:
    """Resolve all contacts of pusher and object, one after the other; the walls come last, so that
    nothing is outside the table."""
    collide = functools.partial(
        free_bodies.collide, restitution=params.restitution, friction=params.contact_friction
    )
    radius = params.pusher_radius
    ground = free_bodies.fixed_body(jnp.zeros(2))

    for part in range(max(1, len(shape.offsets))):
        contact = _contact(pusher.position, radius, target, part, shape)
        pusher, target = collide(pusher, target, contact)
    if len(params.posts):
        # Only the post with the deepest contact: a second one has its turn a substep later.
        centers, radii = jnp.asarray(params.posts)[:, :2], jnp.asarray(params.posts)[:, 2]
        contact = jax.vmap(free_bodies.disc_disc, (0, 0, None, None))(
            centers, radii, pusher.position, radius
        )
        _, pusher = collide(ground, pusher, free_bodies.deepest(contact))
        for part in range(max(1, len(shape.offsets))):
            contact = jax.vmap(_contact, (0, 0, None, None, None))(
                centers, radii, target, part, shape
            )
            _, target = collide(ground, target, free_bodies.deepest(contact))

    table = jnp.asarray(params.table)
    if len(shape.offsets):
        corners = shape.offsets[:, None] + shape.halves[:, None] * shapes.CORNERS
        points = target.position + vectors.rotate(corners.reshape(-1, 2), target.angle)
        thickness = jnp.zeros(())
    else:
        points, thickness = target.position[None], shape.radius
    for contact in free_bodies.walls_of_table(points, thickness, table):
        target, _ = collide(target, ground, contact)
    for contact in free_bodies.walls_of_table(pusher.position[None], radius, table):
        pusher, _ = collide(pusher, ground, contact)
    return pusher, target


def _contact(disc: Array, radius: Number, body: Body, part: int, shape: Shape) -> Contact:
    """Find the contact of a disc at `disc` with one rectangle of the object, or with an object that
    is a disc."""
    if not len(shape.offsets):
        return free_bodies.disc_disc(disc, radius, body.position, shape.radius)
    return free_bodies.disc_box(disc, radius, body, shape.offsets[part], shape.halves[part])


def shape_of(params: Any) -> Shape:
    if len(params.parts):
        return shapes.boxes(jnp.asarray(params.parts), params.object_mass)
    return shapes.disc(params.object_radius, params.object_mass)
