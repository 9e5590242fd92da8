"""Bring a point mass to a goal in the plane and hold it there.

Observation: float32 [4]: position (m, from the arena's center) and velocity (m/s). The goal, in
`timestep.goal`: float32 [2], a position (m); the center unless `goal_range` is set. Action: float32
[2], clipped to [-1, 1]: with `control="force"` a force in units of `gear`, with "velocity" a
velocity in units of `max_speed`. Reward with `cost="tolerance"`: in [0, 1], 1 within `goal_radius`
of the goal, falling like a Gaussian to 0.1 at one `goal_radius` further out, times a factor from
0.8 to 1 for small actions. Never terminates; time limit 1,000 steps. Source: `point_mass` (easy) of
the DeepMind Control Suite (Tassa et al. 2018), which has the same mass, gear, damping, 50 Hz,
starts and reward; free motion agrees with its MuJoCo model, but its limits of the arena are soft,
while here they stop the mass at once. With `cost="quadratic"` arena and action have no limits, and
the reward is -(position_weight |p - goal|^2 + velocity_weight |v|^2 + action_weight |u|^2) of the
state before the step: a linear-quadratic regulator, whose optimal return from `x` is minus the sum
over the axes of x' P x with P from `riccati`. Differentiable except at the limits. Goals cannot be
relabeled, because the reward depends on the action too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import one_of
from jaxrl.envs.planar import free_bodies, tasks, vectors
from jaxrl.envs.wrappers.time_limit import time_limit

DOUBLINGS = 11  # of the regulator's horizon, up to 2,048 steps


@struct
class Params:
    mass: float = 0.3  # kg
    gear: float = 0.1  # N at action 1
    damping: float = 1.0  # N s/m
    max_speed: float = 0.1  # m/s at action 1, if the action is a velocity
    limit: float = 0.29  # m, largest magnitude of each coordinate
    dt: float = 0.02  # s, length of a step
    delay: float = 0.0  # delay of an action, in steps, from 0 to 1
    start_range: float = 0.29  # m; starts (at rest) are uniform between minus and plus this
    goal_range: float = 0.0  # m; goals are uniform between minus and plus this
    goal_radius: float = 0.015  # m, radius of the goal
    position_weight: float = 1.0  # 1/m^2, weight of position in the quadratic cost
    velocity_weight: float = 0.1  # s^2/m^2, weight of velocity in the quadratic cost
    action_weight: float = 0.001  # weight of the action in the quadratic cost


@struct
class State:
    physics: Array  # [4]: position and velocity, the observation
    action: Array  # [2]: the previous action
    goal: Array  # [2]


@functools.cache
def point_mass(cost: str = "tolerance", control: str = "force") -> Environment:
    """The point mass, limited to 1,000 steps.

    cost: "tolerance" (DeepMind Control) or "quadratic" (linear-quadratic, without limits).
    control: "force" or "velocity".
    """
    one_of("point_mass", "cost", cost, ("tolerance", "quadratic"))
    one_of("point_mass", "control", control, ("force", "velocity"))
    linear, velocity_control = cost == "quadratic", control == "velocity"
    bound = math.inf if linear else 1.0
    return time_limit(
        Environment(
            name="point_mass",
            reset=jax.jit(_reset, inline=True),
            step=jax.jit(
                functools.partial(
                    _step, _linear_step if linear else _limited_step, velocity_control
                ),
                inline=True,
            ),
            params=Params(),
            observation_space=Box(-math.inf, math.inf, (4,)),
            action_space=Box(-bound, bound, (2,)),
            render=_render,
            step_seconds=lambda state, params: params.dt,
            expert=functools.partial(_expert, velocity_control, bound),
        ),
        1000,
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    numbers = jax.random.uniform(key, (2, 2), jnp.float32, -1.0, 1.0)
    goal = numbers[1] * params.goal_range
    physics = jnp.concatenate([numbers[0] * params.start_range, jnp.zeros(2)])
    success = {"success": jnp.zeros((), jnp.float32)}
    return State(physics, jnp.zeros(2), goal), timesteps.first(physics, goal=goal, metrics=success)


def _step(
    advance: Callable,
    velocity_control: bool,
    key: Key,
    state: State,
    action: Array,
    params: Params,
) -> tuple[State, TimeStep]:
    del key
    state, reward = advance(velocity_control, state, action, params)
    distance = vectors.norm(state.physics[:2] - state.goal)
    success = (distance <= params.goal_radius).astype(jnp.float32)
    return state, timesteps.following(
        state.physics, reward, goal=state.goal, metrics={"success": success}
    )


def _free_step(velocity_control: bool, state: State, action: Array, params: Params) -> Array:
    """Return the physics [4] after a step in free space."""
    acting = tasks.delay_action(action, state.action, params.delay)
    if velocity_control:
        velocity = params.max_speed * acting
    else:
        force = params.gear * acting
        velocity = free_bodies.drive(
            state.physics[2:], force, params.mass, params.damping, params.dt
        )
    return jnp.concatenate([state.physics[:2] + params.dt * velocity, velocity])


def _limited_step(
    velocity_control: bool, state: State, action: Array, params: Params
) -> tuple[State, Array]:
    action = jnp.clip(action, -1.0, 1.0)
    moved = _free_step(velocity_control, state, action, params)
    position = jnp.clip(moved[:2], -params.limit, params.limit)
    velocity = jnp.where(position == moved[:2], moved[2:], 0.0)
    distance = vectors.norm(position - state.goal)
    outside = jnp.maximum(distance - params.goal_radius, 0.0) / params.goal_radius
    near = 0.1 ** jnp.square(outside)
    small = (jnp.mean(1 - jnp.square(action)) + 4) / 5
    return State(jnp.concatenate([position, velocity]), action, state.goal), near * small


def _linear_step(
    velocity_control: bool, state: State, action: Array, params: Params
) -> tuple[State, Array]:
    cost = (
        params.position_weight * jnp.sum((state.physics[:2] - state.goal) ** 2)
        + params.velocity_weight * jnp.sum(state.physics[2:] ** 2)
        + params.action_weight * jnp.sum(action**2)
    )
    physics = _free_step(velocity_control, state, action, params)
    return State(physics, action, state.goal), -cost


# ------------------------------------------------------------------------------ exact solution


def linear_model(params: Params, velocity_control: bool = False) -> tuple[Array, Array]:
    """Return A [2, 2] and b [2] of x' = A x + b u for one axis, where x is position and velocity
    and u the action, without delay; the axes do not interact."""
    inertia = params.mass + params.dt * params.damping
    keep = 0.0 if velocity_control else params.mass / inertia
    gain = params.max_speed if velocity_control else params.dt * params.gear / inertia
    dt = jnp.asarray(params.dt)
    a = jnp.stack([jnp.stack([jnp.ones(()), dt * keep]), jnp.stack([jnp.zeros(()), dt * 0 + keep])])
    return a, jnp.stack([dt * gain, dt * 0 + gain])


def riccati(params: Params, velocity_control: bool = False) -> tuple[Array, Array]:
    """Return P [2, 2] and K [2] for one axis of the quadratic cost: from x (position minus goal,
    velocity) the optimal action is -K x and the cost-to-go x' P x, without end or discount.

    By doubling (Anderson 1978): each pass doubles the horizon, here up to 2,048 steps.
    """
    a, b = linear_model(params, velocity_control)
    zero = jnp.zeros(())
    state_cost = jnp.diag(jnp.stack([zero + params.position_weight, zero + params.velocity_weight]))

    def double(_, carry):
        a, g, h = carry
        inner = _inverse(jnp.eye(2) + g @ h)
        return a @ inner @ a, g + a @ inner @ g @ a.T, h + a.T @ h @ inner @ a

    start = a, jnp.outer(b, b) / params.action_weight, state_cost
    *_, p = jax.lax.fori_loop(0, DOUBLINGS, double, start)
    return p, (b @ p @ a) / (params.action_weight + b @ p @ b)


def _inverse(matrix: Array) -> Array:
    (a, b), (c, d) = matrix
    return jnp.stack([jnp.stack([d, -b]), jnp.stack([-c, a])]) / (a * d - b * c)


def _expert(velocity_control: bool, bound: float, state: State, params: Params) -> Array:
    """Act by the linear-quadratic regulator, clipped if actions are."""
    _, gain = riccati(params, velocity_control)
    offset = state.physics[:2] - state.goal
    return jnp.clip(-(gain[0] * offset + gain[1] * state.physics[2:]), -bound, bound)


def _render(state: State, params: Params) -> np.ndarray:
    half = float(params.limit)
    canvas = drawing.Canvas(300, 300, scale=140 / (1.06 * half), origin=(150, 150))
    tasks.arena(canvas, half, half)
    goal = (float(state.goal[0]), float(state.goal[1]))
    canvas.circle(goal, 2 * float(params.goal_radius), drawing.PAPER)
    canvas.circle(goal, float(params.goal_radius), drawing.GREEN)
    x, y, *velocity = (float(number) for number in state.physics)
    canvas.line(
        [(x, y), (x + 0.5 * velocity[0], y + 0.5 * velocity[1])], drawing.ORANGE, 0.02 * half
    )
    canvas.circle((x, y), 0.04 * half, drawing.BLUE)
    return canvas.frame()
