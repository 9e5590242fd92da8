"""Swing a pendulum up with a torque too weak to lift it directly, and hold it upright.

Observation: float32 [3]: cosine and sine of the angle from upright (positive counterclockwise), and
the angular velocity (rad/s, at most 8). Action: float32 [1], a torque (N m), clipped to [-2, 2].
Reward: -(angle^2 + 0.1 velocity^2 + 0.001 torque^2) of the state before the step, the angle taken
in [-pi, pi). Never terminates; time limit 200 steps. The state's angle is not wrapped. The dynamics
of Gymnasium's `Pendulum-v1`.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.trigonometry import sin_cos
from jaxrl.envs.wrappers.time_limit import time_limit


@struct
class Params:
    gravity: float = 10.0  # m/s^2
    mass: float = 1.0  # kg
    length: float = 1.0  # m
    dt: float = 0.05  # s
    max_speed: float = 8.0  # rad/s
    max_torque: float = 2.0  # N m
    reset_angle: float = math.pi  # rad; start angles are uniform between minus and plus this
    reset_speed: float = 1.0  # rad/s; start velocities are uniform between minus and plus this


@struct
class State:
    angle: Array
    angular_velocity: Array


@functools.cache
def pendulum() -> Environment:
    """The pendulum, limited to 200 steps."""
    return time_limit(
        Environment(
            name="pendulum",
            reset=_reset,
            step=_step,
            params=Params(),
            observation_space=Box((-1.0, -1.0, -8.0), (1.0, 1.0, 8.0), (3,)),
            action_space=Box(-2.0, 2.0, (1,)),
            render=_render,
            step_seconds=lambda state, params: params.dt,
            expert=_expert,
            state_of=_state_of,
        ),
        200,
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    numbers = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
    state = State(numbers[0] * params.reset_angle, numbers[1] * params.reset_speed)
    return state, timesteps.first(_observation(state))


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    del key
    torque = jnp.clip(action[0], -params.max_torque, params.max_torque)
    turn = 2 * jnp.pi  # `jnp.mod` is slow on a CPU
    angle = state.angle - turn * jnp.floor(state.angle / turn + 0.5)
    cost = angle**2 + 0.1 * state.angular_velocity**2 + 0.001 * torque**2
    acceleration = (
        3 * params.gravity / (2 * params.length) * sin_cos(state.angle)[0]
        + 3.0 / (params.mass * params.length**2) * torque
    )
    velocity = state.angular_velocity + acceleration * params.dt
    velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
    state = State(angle=state.angle + velocity * params.dt, angular_velocity=velocity)
    return state, timesteps.following(_observation(state), -cost)


def _observation(state: State) -> Array:
    sin, cos = sin_cos(state.angle)
    # With a stack, XLA would decide for each number which of the three to compute, and not
    # vectorize.
    place = np.arange(3)
    return jnp.where(place == 0, cos, jnp.where(place == 1, sin, state.angular_velocity))


def _state_of(timestep: TimeStep) -> State:
    """Return the state with an angle from -pi to pi."""
    cos, sin, velocity = (timestep.observation[..., i] for i in range(3))
    return State(jnp.arctan2(sin, cos), velocity)


def _expert(state: State, params: Params) -> Array:
    """Pump energy up to that of standing upright at rest (Astrom and Furuta, 2000), and hold it
    there."""
    angle = jnp.mod(state.angle + jnp.pi, 2 * jnp.pi) - jnp.pi
    lift = 3 * params.gravity / (2 * params.length)  # rad/s^2
    missing = lift * (1 - jnp.cos(angle)) - jnp.square(state.angular_velocity) / 2
    swing = params.max_torque * jnp.where(missing * state.angular_velocity < 0, -1.0, 1.0)
    # Twice the torque of gravity, critically damped.
    arm = params.mass * params.length**2 / 3  # N m per rad/s^2
    hold = -arm * (2 * lift * angle + 2 * jnp.sqrt(lift) * state.angular_velocity)
    torque = jnp.where(jnp.abs(hold) < 2 * params.max_torque, hold, swing)
    return jnp.clip(torque, -params.max_torque, params.max_torque)[None]


def _render(state: State, params: Params) -> np.ndarray:
    angle, length = float(state.angle), float(params.length)
    canvas = drawing.Canvas(300, 300, scale=120 / length, origin=(150, 150))
    tip = (-length * math.sin(angle), length * math.cos(angle))
    canvas.circle((0.0, 0.0), 1.12 * length, drawing.SHADE)
    canvas.circle((0.0, 0.0), 1.1 * length, drawing.PAPER)
    canvas.line([(0.0, 1.04 * length), (0.0, 1.18 * length)], drawing.GREEN, 0.03 * length)
    canvas.rod((0.0, 0.0), tip, drawing.RED, 0.16 * length)
    canvas.circle((0.0, 0.0), 0.05 * length, drawing.INK)
    return canvas.frame()
