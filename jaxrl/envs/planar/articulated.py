"""Forward dynamics of planar trees of rigid links (see `skeletons`), and a stable integrator.

Forward dynamics uses the articulated-body algorithm (Featherstone, 2008, Rigid Body Dynamics
Algorithms, table 7.1) in the plane. All spatial quantities are expressed in one frame, parallel to
the inertial frame, whose origin is the root's joint at that instant, so that every transform
between links is the identity. Everything is unrolled scalar arithmetic: under `vmap` each operation
is one vector over the environments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.staging import isolate
from jaxrl.core.types import Array
from jaxrl.envs.planar import contacts, skeletons, spatial
from jaxrl.envs.planar.skeletons import FREE, NO_PARENT, Physics, Pose, Skeleton
from jaxrl.envs.planar.spatial import Matrix, Vector

Scalars = tuple[Any, ...]
Stage = Callable[..., Any]


def accelerations(
    skeleton: Skeleton,
    physics: Physics,
    q: Any,
    velocity: Any,
    torque: Any,
    dt: Any = 0.0,
    stage: Stage = lambda function, *arguments: function(*arguments),
) -> Scalars:
    """Compute the second derivatives of the coordinates under the motors' torques [M].

    dt: springs, dampers, end stops and the ground act with the force that they will have after a
        step of this length, to first order in the acceleration, which keeps stiff ones stable; 0
        for the current forces.
    stage: function that calls one stage of the algorithm; see `advance`.
    """
    n, offset = len(skeleton.parents), skeleton.offset
    q, velocity = ([x[i] for i in range(skeleton.size)] for x in (q, velocity))
    height = q[1] + physics.place[0][1] if skeleton.joints[0] == FREE else 0.0
    turns = stage(functools.partial(skeletons.turns, skeleton), q)
    place = stage(functools.partial(skeletons.poses_at_root, skeleton, physics), q, turns)
    axes = [skeletons.axis(skeleton, place, link) for link in range(n)]
    motions = stage(functools.partial(_motions, skeleton), place, velocity)

    # First pass, outward: velocity products, and each link's own inertia and bias.
    products: list[Vector] = []
    inertias: list[Matrix] = []
    biases: list[Vector] = []
    for link, parent in enumerate(skeleton.parents):
        own = functools.partial(_link_inertia_and_bias, skeleton, physics, link)
        inertia, bias = stage(own, place[link], height, motions[link], dt)
        inertias.append(inertia)
        biases.append(bias)
        above = (0.0, 0.0, 0.0) if parent == NO_PARENT else motions[parent]
        speed = skeletons.sign(skeleton, link) * velocity[link + offset]
        products.append(spatial.cross(above, spatial.scale(axes[link], speed)))

    # Second pass, inward: articulated inertias and biases.
    forces = {link: torque[i] * physics.gear[i] for i, link in enumerate(skeleton.motors)}
    solved: dict[int, tuple[Vector, Any, Any]] = {}
    for link in reversed(range(n)):
        if skeleton.joints[link] == FREE:
            continue
        index, parent = link + offset, skeleton.parents[link]

        def inward(axis, inertia, bias, product, q, velocity, force, link=link, parent=parent):
            effort, resistance = _joint(skeleton, physics, link, q, velocity, dt)
            effort = skeletons.sign(skeleton, link) * (effort + force)
            column = spatial.times(inertia, axis)  # U in the book
            inverse = 1.0 / (
                spatial.dot(axis, column) + physics.armature[link] + resistance
            )  # 1 / D
            rest = effort - spatial.dot(axis, bias)  # u
            if parent == NO_PARENT:
                return (column, inverse, rest), None
            left = spatial.subtract(inertia, spatial.scale(spatial.outer(column), inverse))
            bias = spatial.add(bias, spatial.times(left, product))
            return (column, inverse, rest), (
                left,
                spatial.add(bias, spatial.scale(column, inverse * rest)),
            )

        solved[link], passed = stage(
            inward,
            axes[link],
            inertias[link],
            biases[link],
            products[link],
            q[index],
            velocity[index],
            forces.get(link, 0.0),
        )
        if passed is not None:
            inertias[parent] = spatial.add(inertias[parent], passed[0])
            biases[parent] = spatial.add(biases[parent], passed[1])

    # Third pass, outward: accelerations.
    result: list[Any] = []
    reached: list[Vector] = []
    for link, parent in enumerate(skeleton.parents):
        if skeleton.joints[link] == FREE:
            root = stage(spatial.solve, inertias[link], spatial.scale(biases[link], -1.0))
            reached.append(root)
            turning, x, z = motions[link]
            # Acceleration of the root's moving point rather than of the body's point at the origin.
            result += [root[1] + turning * z, root[2] - turning * x, root[0]]
            continue

        def outward(above, product, axis, column, inverse, rest):
            carried = spatial.add(above, product)
            acceleration = inverse * (rest - spatial.dot(column, carried))
            return acceleration, spatial.add(carried, spatial.scale(axis, acceleration))

        above = (0.0, 0.0, 0.0) if parent == NO_PARENT else reached[parent]
        acceleration, motion = stage(outward, above, products[link], axes[link], *solved[link])
        reached.append(motion)
        result.append(skeletons.sign(skeleton, link) * acceleration)
    return tuple(result)


def _motions(skeleton: Skeleton, place: list[Pose], velocity: Any) -> list[Vector]:
    """Return the links' velocities."""
    result: list[Vector] = []
    for link, parent in enumerate(skeleton.parents):
        if skeleton.joints[link] == FREE:
            result.append((velocity[2], velocity[0], velocity[1]))
            continue
        speed = skeletons.sign(skeleton, link) * velocity[link + skeleton.offset]
        relative = spatial.scale(skeletons.axis(skeleton, place, link), speed)
        result.append(relative if parent == NO_PARENT else spatial.add(result[parent], relative))
    return result


def _link_inertia_and_bias(
    skeleton: Skeleton, physics: Physics, link: int, pose: Pose, height: Any, motion: Any, dt: Any
) -> tuple[Matrix, Vector]:
    """Return a link's inertia and bias before those of its children are added."""
    x, z = pose.at(physics.center[link])
    inertia, bias = spatial.rigid(
        physics.mass[link], physics.inertia[link], x, z, motion, physics.gravity
    )
    for index, carrier in enumerate(skeleton.feelers):
        if carrier == link:
            touch = contacts.ground(physics, index, pose, height, motion, dt)
            inertia = spatial.add(inertia, touch.resistance)
            bias = spatial.subtract(bias, touch.force)
    return inertia, bias


# Compiled once for each body, even if an environment is stepped without jit.
@functools.partial(jax.jit, static_argnames=("skeleton", "substeps"))
def advance(
    skeleton: Skeleton,
    physics: Physics,
    q: Array,
    velocity: Array,
    torque: Array,
    dt: Any,
    substeps: int,
) -> tuple[Array, Array]:
    """Advance coordinates and velocities, both [D], by `substeps` steps of `dt` under constant
    torques [M]: semi-implicit Euler, with springs, dampers and the ground implicit (see
    `accelerations`). It is of first order; without dissipative forces, the error of the energy
    stays bounded. Momentum is not conserved exactly: in flight, where weight is the only external
    force on a body, its linear and angular momentum drift by an error of first order in `dt`."""
    n = skeleton.size
    motors = [torque[i] for i in range(len(skeleton.motors))]

    def body(step: Any, carry: tuple[Scalars, Scalars]) -> tuple[Scalars, Scalars]:
        stage = functools.partial(isolate, step >= 0)  # three times faster
        q, velocity = carry
        rates = accelerations(skeleton, physics, q, velocity, motors, dt, stage)
        velocity = tuple(v + dt * a for v, a in zip(velocity, rates, strict=True))
        return tuple(x + dt * v for x, v in zip(q, velocity, strict=True)), velocity

    # The carry is a tuple of scalars: under vmap each is one contiguous vector over environments.
    start = tuple(q[i] for i in range(n)), tuple(velocity[i] for i in range(n))
    q_end, velocity_end = jax.lax.fori_loop(0, substeps, body, start)
    return jnp.stack(q_end), jnp.stack(velocity_end)


def end_stop(physics: Physics, link: int, q: Any) -> tuple[Any, Any, Any]:
    """Return the static force of a joint's end stops, and their stiffness and damping at `q`."""
    beyond = q - jnp.clip(q, physics.low[link], physics.high[link])
    touching = beyond != 0.0
    return (
        -physics.stop_stiffness * beyond,
        jnp.where(touching, physics.stop_stiffness, 0.0),
        jnp.where(touching, physics.stop_damping, 0.0),
    )


def _joint(
    skeleton: Skeleton, physics: Physics, link: int, q: Any, velocity: Any, dt: Any
) -> tuple[Any, Any]:
    """Return the passive force of a joint after a step of `dt` without acceleration, and by how
    much it decreases with the acceleration."""
    stiffness, damping = physics.stiffness[link], physics.damping[link]
    force = -stiffness * q
    if link in skeleton.limited:
        push, stop_stiffness, stop_damping = end_stop(physics, link, q)
        force, stiffness, damping = force + push, stiffness + stop_stiffness, damping + stop_damping
    resistance = damping + dt * stiffness
    return force - resistance * velocity, dt * resistance
