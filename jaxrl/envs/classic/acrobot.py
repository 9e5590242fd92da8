"""Swing the tip of a two-link robot above a line, with a motor at the joint between the links only.

Observation: float32 [6]: cosine and sine of the first link's angle (from hanging down, positive
counterclockwise), cosine and sine of the second link's angle (from the first link), and both
angular velocities (rad/s, at most 4 pi and 9 pi). Action: 0, 1, 2 apply a torque of -1, 0, +1 N m.
Reward: -1 for every step, 0 for the one that terminates. Terminates when the tip is more than 1 m
above the pivot; time limit 500 steps. Sutton (1996), "Generalization in reinforcement learning";
the dynamics ("book" variant, one Runge-Kutta step of order 4) of Gymnasium's `Acrobot-v1`.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.wrappers.time_limit import time_limit


@struct
class Params:
    gravity: float = 9.8  # m/s^2
    length_1: float = 1.0  # m
    length_2: float = 1.0  # m; for drawing only, the equations of motion do not contain it
    mass_1: float = 1.0  # kg
    mass_2: float = 1.0  # kg
    center_1: float = 0.5  # m, from the first link's joint to its center of mass
    center_2: float = 0.5  # m, from the second link's joint to its center of mass
    inertia: float = 1.0  # kg m^2, of each link
    torque: float = 1.0  # N m
    dt: float = 0.2  # s
    max_velocity_1: float = 4 * math.pi  # rad/s, of the first link
    max_velocity_2: float = 9 * math.pi  # rad/s, of the second link
    goal_height: float = 1.0  # height of the goal above the pivot, in lengths of a link
    reset_low: float = -0.1  # lower bound of all four numbers of the state at reset
    reset_high: float = 0.1  # upper bound of all four numbers of the state at reset


@struct
class State:
    angle_1: Array
    angle_2: Array
    velocity_1: Array
    velocity_2: Array


@functools.cache
def acrobot() -> Environment:
    """The acrobot, limited to 500 steps."""
    bound = (1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)
    return time_limit(
        Environment(
            name="acrobot",
            reset=_reset,
            step=_step,
            params=Params(),
            observation_space=Box(tuple(-x for x in bound), bound, (6,)),
            action_space=Discrete(3),
            render=_render,
            step_seconds=lambda state, params: params.dt,
            expert=_expert,
        ),
        500,
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    numbers = jax.random.uniform(key, (4,), jnp.float32, params.reset_low, params.reset_high)
    state = State(numbers[0], numbers[1], numbers[2], numbers[3])
    return state, timesteps.first(_observation(state))


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    del key
    state = _runge_kutta(state, (action - 1) * params.torque, params)
    state = State(
        angle_1=_wrap(state.angle_1),
        angle_2=_wrap(state.angle_2),
        velocity_1=jnp.clip(state.velocity_1, -params.max_velocity_1, params.max_velocity_1),
        velocity_2=jnp.clip(state.velocity_2, -params.max_velocity_2, params.max_velocity_2),
    )
    height = -jnp.cos(state.angle_1) - jnp.cos(state.angle_1 + state.angle_2)
    terminated = height > params.goal_height
    return state, timesteps.following(
        _observation(state), terminated.astype(jnp.float32) - 1.0, terminated
    )


def _runge_kutta(state: State, torque: Array, params: Params) -> State:
    """Take one classical Runge-Kutta step of `dt` under a constant torque."""

    def ahead(slope: State, time: Array | float) -> State:
        return jax.tree.map(lambda x, d: x + time * d, state, slope)

    slope_1 = _derivative(state, torque, params)
    slope_2 = _derivative(ahead(slope_1, params.dt / 2), torque, params)
    slope_3 = _derivative(ahead(slope_2, params.dt / 2), torque, params)
    slope_4 = _derivative(ahead(slope_3, params.dt), torque, params)
    slope = jax.tree.map(
        lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, slope_1, slope_2, slope_3, slope_4
    )
    return ahead(slope, params.dt)


def _derivative(state: State, torque: Array, params: Params) -> State:
    """Evaluate the equations of motion, as in Sutton and Barto (1998), section 11.3."""
    p = params
    cos_2, sin_2 = jnp.cos(state.angle_2), jnp.sin(state.angle_2)
    coupling = p.mass_2 * p.length_1 * p.center_2
    d1 = (
        p.mass_1 * p.center_1**2
        + p.mass_2 * (p.length_1**2 + p.center_2**2)
        + 2 * coupling * cos_2
        + 2 * p.inertia
    )
    d2 = p.mass_2 * p.center_2**2 + coupling * cos_2 + p.inertia
    phi2 = p.mass_2 * p.center_2 * p.gravity * jnp.sin(state.angle_1 + state.angle_2)
    phi1 = (
        -coupling * state.velocity_2**2 * sin_2
        - 2 * coupling * state.velocity_2 * state.velocity_1 * sin_2
        + (p.mass_1 * p.center_1 + p.mass_2 * p.length_1) * p.gravity * jnp.sin(state.angle_1)
        + phi2
    )
    acceleration_2 = (torque + d2 / d1 * phi1 - coupling * state.velocity_1**2 * sin_2 - phi2) / (
        p.mass_2 * p.center_2**2 + p.inertia - d2**2 / d1
    )
    acceleration_1 = -(d2 * acceleration_2 + phi1) / d1
    return State(state.velocity_1, state.velocity_2, acceleration_1, acceleration_2)


def _wrap(angle: Array) -> Array:
    """Wrap an angle to [-pi, pi]; one that is there already stays the same to the bit."""
    return angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))


def _observation(state: State) -> Array:
    return jnp.stack(
        [
            jnp.cos(state.angle_1),
            jnp.sin(state.angle_1),
            jnp.cos(state.angle_2),
            jnp.sin(state.angle_2),
            state.velocity_1,
            state.velocity_2,
        ]
    )


def _expert(state: State, params: Params) -> Array:
    """Pump energy: drive the second link the way it turns relative to the first."""
    del params
    return jnp.where(state.velocity_2 < 0, 0, 2)


def _render(state: State, params: Params) -> np.ndarray:
    first, second = float(params.length_1), float(params.length_2)
    reach = first + second
    one, both = float(state.angle_1), float(state.angle_1 + state.angle_2)
    elbow = (first * math.sin(one), -first * math.cos(one))
    tip = (elbow[0] + second * math.sin(both), elbow[1] - second * math.cos(both))
    goal = float(params.goal_height)
    canvas = drawing.Canvas(300, 300, scale=136 / reach, origin=(150, 150))
    canvas.line([(-2 * reach, goal), (2 * reach, goal)], drawing.GREEN, 0.012 * reach)
    canvas.rod((0.0, 0.0), elbow, drawing.BLUE, 0.09 * reach)
    canvas.rod(elbow, tip, drawing.ORANGE, 0.08 * reach)
    canvas.circle((0.0, 0.0), 0.025 * reach, drawing.INK)
    canvas.circle(elbow, 0.025 * reach, drawing.INK)
    return canvas.frame()
