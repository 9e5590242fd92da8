"""Push an object over a table with a disc: to a place, to a pose, around a post, through a gap.

Observation: float32 [11]: the pusher's position and velocity (m, m/s), the object's position, the
cosine and sine of its angle, its velocity and its spin (rad/s). Goal, in `timestep.goal`: float32
[2], a position (m) of the object (of the pusher for `task="reach"`), or [4] for `task="pose"`, the
position and the angle's cosine and sine. Action: float32 [2], clipped to [-1, 1]: with
`control="velocity"` the pusher's velocity in units of `max_speed`, held by a servo, with "force" a
force in units of `gear`. Reward: with `reward="sparse"` 1 within `goal_radius` (and, for a pose,
`goal_angle`) and 0 elsewhere, with "dense" minus the distance and, for a pose, minus `angle_weight`
(1 - cos of the angle's error). Terminates where the sparse reward is 1, unless `continuing`; time
limit 200 steps of 0.1 s. Objects: a disc, a box, or a T made of two boxes with the proportions of
Push-T (Florence et al. 2021, "Implicit behavioral cloning"; Chi et al. 2023, "Diffusion policy"),
but without its pixels, soft contacts and measure of success (overlap with the goal). Physics:
Coulomb friction between the object and the table on the ellipsoidal limit surface, which couples
sliding and turning, and rigid contacts with restitution and friction (see `free_bodies`). The posts
and the gap are fixed discs. Starts and goals are uniform in boxes. Differentiable between touches,
and through a touch by its impulse only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.options import one_of
from jaxrl.envs.planar import (
    free_bodies,
    push_expert,
    push_pictures,
    push_table,
    tasks,
    vectors,
)
from jaxrl.envs.planar.free_bodies import Body
from jaxrl.envs.planar.shapes import Shape
from jaxrl.envs.wrappers.time_limit import time_limit

TASKS = ("push", "pose", "obstacle", "gap", "reach")
# Rectangles: center x, y and half sides, in m; their common center may lie anywhere.
SHAPES = {
    "disc": np.zeros((0, 4), np.float32),
    "box": np.array([[0.0, 0.0, 0.09, 0.06]], np.float32),
    "t": np.array([[0.0, 0.0, 0.12, 0.03], [0.0, -0.12, 0.03, 0.09]], np.float32),
}
# Fixed discs: center x, y and radius, in m.
POSTS = {
    "obstacle": np.array([[0.0, 0.0, 0.1]], np.float32),
    "gap": np.array([[0.0, s * (0.19 + 0.1 * i), 0.05] for s in (-1, 1) for i in range(4)], "f"),
}
SUBSTEPS = 5


@struct
class Params:
    parts: np.ndarray  # [K, 4], the object's rectangles, center and half sides (m); none for a disc
    posts: np.ndarray  # [P, 3], fixed discs: center and radius (m)
    table: np.ndarray  # [2], half sides of the table (m)
    low: np.ndarray  # [3, 2], least coordinates (m) of pusher start, object start and goal
    high: np.ndarray  # [3, 2], greatest coordinates (m) of pusher start, object start and goal
    object_radius: float = 0.08  # m, radius of an object that is a disc
    object_mass: float = 1.0  # kg
    pusher_radius: float = 0.03  # m
    pusher_mass: float = 2.0  # kg
    pusher_damping: float = 4.0  # N s/m
    max_speed: float = 0.5  # m/s at action 1, if the action is a velocity
    servo: float = 60.0  # N s/m, gain of the servo on the error of the velocity
    gear: float = 5.0  # N at action 1, if the action is a force
    gravity: float = 9.81  # m/s^2
    table_friction: float = 0.3  # friction coefficient of the object on the table
    contact_friction: float = 0.2  # friction coefficient between pusher, object, posts and walls
    restitution: float = 0.0  # coefficient of restitution of all contacts
    goal_radius: float = 0.05  # m, distance at which the goal is reached
    goal_angle: float = 0.3  # rad, tolerance of the angle in a pose
    angle_weight: float = 0.1  # m, weight of the angle in a pose's dense reward
    angle_range: float = math.pi  # rad; angles of starts and goals are within plus and minus this
    delay: float = 0.0  # delay of an action, in steps, from 0 to 1
    dt: float = 0.1  # s, length of a step
    continuing: bool = False  # whether an episode goes on at the goal


@struct
class State:
    pusher: Array  # [4]: position, velocity
    object: Array  # [6]: position, velocity, angle, spin
    action: Array  # [2]: the previous action
    goal: Array  # [2] or [4]


@functools.cache
def push(
    task: str = "push", shape: str = "disc", control: str = "velocity", reward: str = "sparse"
) -> Environment:
    """The pushing table.

    task: "push" (to a position), "pose" (to a position and an angle), "obstacle" (to a position
    behind a post), "gap" (through a row of posts) or "reach" (the pusher goes to a position, with
    the object in its way). shape: "disc", "box" or "t". control: "velocity" or "force". reward:
    "sparse" or "dense". There is no expert for poses.
    """
    one_of("push", "task", task, TASKS)
    one_of("push", "shape", shape, tuple(SHAPES))
    one_of("push", "control", control, ("velocity", "force"))
    one_of("push", "reward", reward, ("sparse", "dense"))
    if task == "pose" and shape == "disc":
        raise UserError(
            "The shape of a pose is 'disc', which has no orientation; it must be box or t."
        )
    achieved = _ACHIEVED.get(task, _position)
    outcome = functools.partial(_outcome, task == "pose", reward == "dense")
    return time_limit(
        Environment(
            name="push",
            reset=jax.jit(functools.partial(_reset, task == "pose"), inline=True),
            step=jax.jit(
                functools.partial(_step, control == "velocity", achieved, outcome), inline=True
            ),
            params=_params(task, shape),
            observation_space=Box(-math.inf, math.inf, (11,)),
            action_space=Box(-1.0, 1.0, (2,)),
            render=push_pictures.render,
            step_seconds=lambda state, params: params.dt,
            expert=None
            if task == "pose"
            else functools.partial(push_expert.expert, task, control == "velocity"),
            goals=Goals(achieved, outcome),
        ),
        200,
    )


def _params(task: str, shape: str) -> Params:
    low = np.array([[-0.45, -0.45], [-0.3, -0.3], [-0.33, -0.33]], np.float32)
    high = -low
    if task in POSTS:  # from left to right
        low[1:] = [[-0.3, -0.2], [0.2, -0.2]]
        high[:] = [[-0.2, 0.45], [-0.2, 0.2], [0.33, 0.2]]
    posts = POSTS.get(task, np.zeros((0, 3), np.float32))
    return Params(SHAPES[shape], posts, np.full(2, 0.5, np.float32), low, high)


# ------------------------------------------------------------------------------ reset and step


def _reset(pose: bool, key: Key, params: Params) -> tuple[State, TimeStep]:
    numbers = jax.random.uniform(key, (4, 2), jnp.float32)
    low, high = jnp.asarray(params.low), jnp.asarray(params.high)
    pusher, target, goal = low + numbers[:3] * (high - low)
    angle, goal_angle = (2 * numbers[3] - 1) * params.angle_range
    # A pusher that would overlap the object is moved off it, away from its center, or to its other
    # side where the table ends.
    clear = push_table.shape_of(params).radius + params.pusher_radius
    between = pusher - target
    distance = vectors.norm(between)
    away = jnp.where(distance > 1e-6, between / distance, jnp.asarray([-1.0, 0.0]))
    fits = (
        jnp.abs(target + clear * away) <= jnp.asarray(params.table) - params.pusher_radius
    ).all()
    moved = target + jnp.where(fits, clear, -clear) * away
    pusher = jnp.where(distance < clear, moved, pusher)
    if pose:
        goal = jnp.concatenate([goal, jnp.stack([jnp.cos(goal_angle), jnp.sin(goal_angle)])])
    none = jnp.zeros(2)
    state = State(
        jnp.concatenate([pusher, none]),
        jnp.concatenate([target, none, jnp.stack([angle, jnp.zeros(())])]),
        none,
        goal,
    )
    success = {"success": jnp.zeros((), jnp.float32)}
    return state, timesteps.first(_observation(state), goal=goal, metrics=success)


def _step(
    velocity_control: bool,
    achieved: Callable,
    outcome: Callable,
    key: Key,
    state: State,
    action: Array,
    params: Params,
) -> tuple[State, TimeStep]:
    del key
    action = jnp.clip(action, -1.0, 1.0)
    acting = tasks.delay_action(action, state.action, params.delay)
    shape = push_table.shape_of(params)
    dt = params.dt / SUBSTEPS

    def substep(_, bodies: tuple[Body, Body]) -> tuple[Body, Body]:
        pusher, target = bodies
        if velocity_control:  # a damper toward the commanded velocity
            force, damping = params.servo * params.max_speed * acting, params.servo
        else:
            force, damping = params.gear * acting, params.pusher_damping
        velocity = free_bodies.drive(pusher.velocity, force, params.pusher_mass, damping, dt)
        velocity = vectors.cap_length(
            velocity, free_bodies.LARGEST_MOVE * params.pusher_radius / dt
        )
        pusher = dataclasses.replace(
            pusher, position=pusher.position + dt * velocity, velocity=velocity
        )
        grip = params.table_friction * params.gravity
        target = free_bodies.slide(target, grip, shape.reach, dt)
        return push_table.resolve_contacts(pusher, target, shape, params)

    pusher, target = jax.lax.fori_loop(0, SUBSTEPS, substep, _bodies(state, params, shape))
    state = State(
        jnp.concatenate([pusher.position, pusher.velocity]),
        jnp.concatenate([target.position, target.velocity, jnp.stack([target.angle, target.spin])]),
        action,
        state.goal,
    )
    observation = _observation(state)
    reward, terminated = outcome(achieved(observation), state.goal, params)
    reached = _is_reached(achieved(observation), state.goal, params)
    return state, timesteps.following(
        observation,
        reward,
        terminated,
        goal=state.goal,
        metrics={"success": reached.astype(jnp.float32)},
    )


def _bodies(state: State, params: Params, shape: Shape) -> tuple[Body, Body]:
    """Return pusher and object as bodies. The pusher does not turn."""
    p, o = state.pusher, state.object
    still = jnp.zeros(())
    return (
        Body(p[:2], still, p[2:], still, 1 / jnp.asarray(params.pusher_mass), still),
        Body(o[:2], o[4], o[2:4], o[5], 1 / jnp.asarray(params.object_mass), shape.inverse_inertia),
    )


def _observation(state: State) -> Array:
    angle = state.object[4]
    return jnp.concatenate(
        [
            state.pusher,
            state.object[:2],
            jnp.stack([jnp.cos(angle), jnp.sin(angle)]),
            state.object[2:4],
            state.object[5:],
        ]
    )


# ------------------------------------------------------------------------------ goals


def _position(observation: Array) -> Array:
    return observation[..., 4:6]


_ACHIEVED = {
    "pose": lambda observation: observation[..., 4:8],
    "reach": lambda observation: observation[..., :2],
}


def _alike(achieved: Array, goal: Array) -> Array:
    """Return the cosine of the angle between two poses [..., 4]."""
    return jnp.sum(achieved[..., 2:] * goal[..., 2:], -1)


def _is_reached(achieved: Array, goal: Array, params: Params) -> Array:
    near = vectors.norm(achieved[..., :2] - goal[..., :2]) <= params.goal_radius
    if goal.shape[-1] == 2:
        return near
    return near & (_alike(achieved, goal) >= jnp.cos(params.goal_angle))


def _outcome(
    pose: bool, dense: bool, achieved: Array, goal: Array, params: Params
) -> tuple[Array, Array]:
    reached = _is_reached(achieved, goal, params)
    terminated = reached & ~jnp.asarray(params.continuing)
    if not dense:
        return reached.astype(jnp.float32), terminated
    distance = vectors.norm(achieved[..., :2] - goal[..., :2])
    if pose:
        distance = distance + params.angle_weight * (1 - _alike(achieved, goal))
    return -distance, terminated
