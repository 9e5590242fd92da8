"""Planar trees of rigid links: their structure, their numbers, and the poses of the links.

The plane is (x, z) with z up. Angles are about +y: a positive angle turns z toward x, so an
upright pole falls to the right. A link's frame has its origin at the joint that carries it and is
parallel to its parent's frame where the joint's coordinate is 0.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.types import struct
from jaxrl.envs.planar.spatial import Vector

NO_PARENT = -1
FREE = "free"  # only for the root: three coordinates x, z and angle of its frame
HINGE, REVERSED_HINGE = "hinge", "reversed hinge"  # about +y and about -y (counterclockwise)
SLIDE_X, SLIDE_Z = "slide x", "slide z"  # along an axis of the parent's frame


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """Structure of a body. A joint's coordinate has the index of its link; a free root has three
    coordinates, which moves all later ones up by two."""

    parents: tuple[int, ...]  # parent of each link, or NO_PARENT; parents come first
    joints: tuple[str, ...]  # joint that carries each link
    motors: tuple[int, ...] = ()  # links whose joints have motors
    limited: tuple[int, ...] = ()  # links whose joints have end stops
    feelers: tuple[int, ...] = ()  # links that carry the spheres that touch the ground

    @property
    def offset(self) -> int:
        """Offset that a free root adds to the index of a joint's coordinate."""
        return 2 if self.joints[0] == FREE else 0

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.parents) + self.offset


@struct
class Physics:
    """Numbers of a body, in SI units, for its `L` links, `M` motors and `C` spheres. Those of a
    free root's joint are not read, except for its place."""

    mass: Any  # [L], kg
    inertia: Any  # [L], moment of inertia about the link's center of mass
    center: Any  # [L, 2], center of mass in the link's frame
    place: Any  # [L, 2], joint in the parent's frame; for a free root, its place if q is 0
    armature: Any  # [L], inertia (or mass) of the motor, added to the joint
    damping: Any  # [L], viscous damping of the joint
    stiffness: Any  # [L], stiffness of a spring that pulls the coordinate to 0
    low: Any  # [L], lower end stop
    high: Any  # [L], upper end stop
    stop_stiffness: Any  # stiffness of the end stops
    stop_damping: Any  # damping of the end stops
    gear: Any  # [M], torque (or force) at action 1
    gravity: Any = 9.81  # m/s^2
    feeler: Any = ()  # [C, 2], centers of the spheres in their links' frames
    radius: Any = ()  # [C], radius of each sphere
    friction: Any = ()  # [C], Coulomb's friction coefficient
    ground_stiffness: Any = 2e4  # N/m, stiffness of the ground
    ground_damping: Any = 10.0  # s/m, Hunt and Crossley's damping of the ground
    slip: Any = 0.02  # m/s, sliding speed above which friction is nearly Coulomb's


@struct
class Pose:
    """Pose of a link: its frame's origin and its angle's cosine and sine."""

    x: Any
    z: Any
    cos: Any
    sin: Any

    def at(self, point: Any) -> tuple[Any, Any]:
        """Map a point of the link's frame to the frame of the pose."""
        x, z = point[0], point[1]
        return self.x + self.cos * x + self.sin * z, self.z - self.sin * x + self.cos * z


@functools.partial(jax.jit, static_argnums=0)
def poses(skeleton: Skeleton, physics: Physics, q: Any) -> list[Pose]:
    """Return the links' poses in the inertial frame at coordinates `q` [D], for rewards and
    pictures."""
    q = [q[i] for i in range(skeleton.size)]
    relative = poses_at_root(skeleton, physics, q, turns(skeleton, q))
    if skeleton.joints[0] != FREE:
        return relative
    x, z = q[0] + physics.place[0][0], q[1] + physics.place[0][1]
    return [dataclasses.replace(p, x=p.x + x, z=p.z + z) for p in relative]


def turns(skeleton: Skeleton, q: Any) -> list[tuple[Any, Any]]:
    """Return the cosine and sine of each link's angle in the inertial frame."""
    angles: list[Any] = []
    result: list[tuple[Any, Any]] = []
    for link, (parent, joint) in enumerate(zip(skeleton.parents, skeleton.joints, strict=True)):
        still = joint in (SLIDE_X, SLIDE_Z)
        turn = 0.0 if still else sign(skeleton, link) * q[link + skeleton.offset]
        angles.append(turn if parent == NO_PARENT else angles[parent] + turn)
        if still:
            result.append((1.0, 0.0) if parent == NO_PARENT else result[parent])
        else:
            result.append((jnp.cos(angles[-1]), jnp.sin(angles[-1])))
    return result


def poses_at_root(skeleton: Skeleton, physics: Physics, q: Any, turns: Any) -> list[Pose]:
    """Return poses with the origin at a free root's frame, or else at the inertial frame's."""
    result: list[Pose] = []
    for link, (parent, joint) in enumerate(zip(skeleton.parents, skeleton.joints, strict=True)):
        base = Pose(0.0, 0.0, 1.0, 0.0) if parent == NO_PARENT else result[parent]
        x, z = (0.0, 0.0) if joint == FREE else base.at(physics.place[link])
        if joint in (SLIDE_X, SLIDE_Z):
            along, across = (base.cos, -base.sin) if joint == SLIDE_X else (base.sin, base.cos)
            coordinate = q[link + skeleton.offset]
            x, z = x + along * coordinate, z + across * coordinate
        result.append(Pose(x, z, *turns[link]))
    return result


def sign(skeleton: Skeleton, link: int) -> float:
    return -1.0 if skeleton.joints[link] == REVERSED_HINGE else 1.0


def axis(skeleton: Skeleton, place: list[Pose], link: int) -> Vector:
    """Return the joint's motion subspace (S in the book): the motion of the link at unit speed."""
    match skeleton.joints[link]:
        case "slide x":
            return 0.0, place[link].cos, -place[link].sin
        case "slide z":
            return 0.0, place[link].sin, place[link].cos
        case _:
            return 1.0, -place[link].z, place[link].x
