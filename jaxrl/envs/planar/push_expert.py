"""Hand-written policy for pushing objects: go behind them, around them and not through them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl.core.types import Array
from jaxrl.envs.planar import push_table, vectors
from jaxrl.envs.planar.vectors import Number

BEHIND = 0.35  # rad off the line from the goal through the object: close enough to push
STEER = 4.0  # 1/s, rate of steering back to that line


def expert(task: str, velocity_control: bool, state: Any, params: Any) -> Array:
    """Go behind the object, around it and not through it, then push; pass posts by waypoints."""
    pusher, place = state.pusher[:2], state.object[:2]
    radius = push_table.shape_of(params).radius
    if task == "reach":
        velocity = 5.0 * (state.goal - pusher)
    else:
        aim = state.goal
        if task == "gap":
            aim = through_gap(place, aim, radius)
        if task == "obstacle":
            aim = round_post(place, aim, radius, jnp.asarray(params.posts)[0])
        clear = radius + params.pusher_radius + 0.02
        velocity = pushing(pusher, place, aim, clear, 0.6 * params.max_speed)
    velocity = vectors.cap_length(velocity, params.max_speed)
    if velocity_control:
        return jnp.clip(velocity / params.max_speed, -1.0, 1.0)
    force = 20.0 * (velocity - state.pusher[2:]) + params.pusher_damping * velocity
    return jnp.clip(force / params.gear, -1.0, 1.0)


def pushing(pusher: Array, place: Array, aim: Array, clear: Number, speed: Number) -> Array:
    """Return the velocity (m/s) of a pusher at `pusher` that brings an object at `place` to `aim`
    (all [2]).

    clear: m, distance of the pusher from the object's center while it goes around; speed: m/s, at
    most, while it pushes.
    """
    way = aim - place
    forward = way / vectors.norm(way)
    spoke = pusher - place
    distance = vectors.norm(spoke)
    outward = spoke / distance
    # The angle, seen from the object, between the pusher and the place right behind the object.
    turn = jnp.arctan2(vectors.cross(outward, -forward), -(outward @ forward))
    around = STEER * distance * turn * vectors.perpendicular(outward)
    keep_off = 6.0 * (clear - distance) * outward
    onward = -outward * jnp.minimum(0.06 + 1.5 * vectors.norm(way), speed)
    return around + jnp.where(jnp.abs(turn) < BEHIND, onward, keep_off)


def through_gap(place: Array, goal: Array, radius: Array) -> Array:
    """Return where to push an object of `radius` next to bring it through a gap at the origin from
    the left: in front of the gap, then behind it, then to the goal."""
    front = radius + 0.08
    entry, exit_ = jnp.stack([-front, front * 0]), jnp.stack([front, front * 0])
    inline = (jnp.abs(place[1]) < 0.025) | (place[0] > 0.02 - front)
    passed = place[0] > front - 0.03
    return jnp.where(passed, goal, jnp.where(inline, exit_, entry))


def round_post(place: Array, goal: Array, radius: Array, post: Array) -> Array:
    """Return where to push an object of `radius` next to bring it around `post` [3] (center and
    radius): to the goal if the path is free, else to a point beside the post, on the path's side of
    it."""
    center, clear = post[:2], post[2] + radius + 0.05
    way = goal - place
    along = jnp.clip((center - place) @ way / (way @ way), 0.0, 1.0)
    off = place + along * way - center  # from the post to the nearest point of the path
    distance = vectors.norm(off)
    blocked = (distance < clear - 0.03) & (along > 0) & (along < 1)
    return jnp.where(blocked, center + clear * off / distance, goal)
