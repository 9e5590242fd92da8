"""Balance a pole on a cart by pushing the cart left or right.

Observation: float32 [4]: cart position (m), cart velocity (m/s), pole angle from upright (rad,
positive to the right), its angular velocity (rad/s). Action: 0 pushes left, 1 pushes right. Reward:
1 for every step, including the last. Terminates when the cart is more than 2.4 m from the center or
the pole more than 12 degrees from upright; time limit 500 steps. Barto, Sutton and Anderson (1983),
"Neuronlike adaptive elements that can solve difficult learning control problems"; the dynamics,
with Euler integration, of Gymnasium's `CartPole-v1`.
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
from jaxrl.envs.trigonometry import sin_cos
from jaxrl.envs.wrappers.time_limit import time_limit


@struct
class Params:
    gravity: float = 9.8  # m/s^2
    cart_mass: float = 1.0  # kg
    pole_mass: float = 0.1  # kg
    half_length: float = 0.5  # m, from the axle to the pole's center of mass
    force: float = 10.0  # N
    dt: float = 0.02  # s
    max_angle: float = 12 * math.pi / 180  # rad; beyond it the episode terminates
    max_position: float = 2.4  # m; beyond it the episode terminates
    reset_low: float = -0.05  # lower bound of all four numbers of the state at reset
    reset_high: float = 0.05  # upper bound of all four numbers of the state at reset


@struct
class State:
    # One array, not four: it is the observation too and needs a quarter of the small operations.
    physics: Array  # [4]: position, velocity, angle, angular velocity


@functools.cache
def cartpole() -> Environment:
    """The cart and pole, limited to 500 steps."""
    bound = (4.8, math.inf, 2 * 12 * math.pi / 180, math.inf)
    return time_limit(
        Environment(
            name="cartpole",
            reset=_reset,
            step=_step,
            params=Params(),
            observation_space=Box(tuple(-x for x in bound), bound, (4,)),
            action_space=Discrete(2),
            render=_render,
            step_seconds=lambda state, params: params.dt,
            expert=_expert,
            state_of=lambda timestep: State(timestep.observation),
        ),
        500,
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    numbers = jax.random.uniform(key, (4,), jnp.float32, params.reset_low, params.reset_high)
    return State(numbers), timesteps.first(numbers)


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    del key
    _, velocity, angle, angular_velocity = state.physics
    mass = params.cart_mass + params.pole_mass
    moment = params.pole_mass * params.half_length
    force = jnp.where(action == 1, params.force, -params.force)
    sin, cos = sin_cos(angle)
    push = (force + moment * jnp.square(angular_velocity) * sin) / mass
    angular_acceleration = (params.gravity * sin - cos * push) / (
        params.half_length * (4.0 / 3.0 - params.pole_mass * jnp.square(cos) / mass)
    )
    acceleration = push - moment * angular_acceleration * cos / mass
    # Euler: all rates are those before the step.
    rates = jnp.stack([velocity, acceleration, angular_velocity, angular_acceleration])
    physics = state.physics + params.dt * rates
    outside = jnp.abs(physics) > jnp.stack(
        [params.max_position, jnp.inf, params.max_angle, jnp.inf]
    )
    return State(physics), timesteps.following(physics, 1.0, outside.any())


def _expert(state: State, params: Params) -> Array:
    """Push under the pole as it falls, and lean it slightly toward the center of the track."""
    del params
    lean = state.physics @ jnp.array([0.05, 0.1, 1.0, 0.5])
    return (lean > 0).astype(jnp.int32)


def _render(state: State, params: Params) -> np.ndarray:
    edge = float(params.max_position)
    unit = edge / 2.4  # sizes scale with the track, so that the cart is visible on any
    x, _, angle, _ = (float(number) for number in state.physics)
    length = 2 * float(params.half_length)
    canvas = drawing.Canvas(400, 300, scale=200 / (edge + 0.4 * unit), origin=(200, 225))
    far, deep = edge + unit, -5 * unit
    ground = [(-far, 0), (far, 0), (far, deep), (-far, deep)]
    canvas.polygon(ground, drawing.SHADE)
    canvas.line([(-edge - unit, 0), (edge + unit, 0)], drawing.STEEL, 0.03 * unit)
    for mark in (-edge, edge):
        canvas.line([(mark, -0.1 * unit), (mark, 0.1 * unit)], drawing.RED, 0.03 * unit)
    left, right, top = x - 0.24 * unit, x + 0.24 * unit, 0.28 * unit
    for wheel in (x - 0.14 * unit, x + 0.14 * unit):
        canvas.circle((wheel, 0.06 * unit), 0.06 * unit, drawing.STEEL)
    canvas.polygon(
        [(left, 0.08 * unit), (right, 0.08 * unit), (right, top), (left, top)], drawing.INK
    )
    axle = (x, 0.24 * unit)
    tip = (x + length * math.sin(angle), axle[1] + length * math.cos(angle))
    canvas.rod(axle, tip, drawing.ORANGE, 0.1 * unit)
    canvas.circle(axle, 0.04 * unit, drawing.PAPER)
    return canvas.frame()
