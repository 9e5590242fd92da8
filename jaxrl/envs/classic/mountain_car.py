"""Drive a car that is too weak for the hill out of a valley, by swinging back and forth.

Observation: float32 [2]: position (in [-1.2, 0.6]) and velocity (in [-0.07, 0.07]). Action: 0
accelerates left, 1 coasts, 2 accelerates right. Reward: -1 for every step. Terminates at position
0.5 or beyond with a velocity of at least 0; time limit 200 steps. The left wall stops the car.
Moore (1990), "Efficient memory-based learning for robot control"; the dynamics of Gymnasium's
`MountainCar-v0`.
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
    force: float = 0.001  # velocity gained in one step by accelerating
    gravity: float = 0.0025  # velocity lost per step, times cos(3 position)
    min_position: float = -1.2  # position of the left wall
    max_position: float = 0.6  # right end of the track
    max_speed: float = 0.07  # largest magnitude of the velocity
    goal_position: float = 0.5  # position from which the goal is reached
    goal_velocity: float = 0.0  # least velocity at which the goal counts
    reset_low: float = -0.6  # lower bound of the start position; the car starts at rest
    reset_high: float = -0.4  # upper bound of the start position


@struct
class State:
    position: Array
    velocity: Array


@functools.cache
def mountain_car() -> Environment:
    """The mountain car with three actions, limited to 200 steps."""
    return time_limit(
        Environment(
            name="mountain_car",
            reset=_reset,
            step=_step,
            params=Params(),
            observation_space=Box((-1.2, -0.07), (0.6, 0.07), (2,)),
            action_space=Discrete(3),
            render=_render,
            expert=_expert,
        ),
        200,
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    position = jax.random.uniform(key, (), jnp.float32, params.reset_low, params.reset_high)
    state = State(position=position, velocity=jnp.zeros((), jnp.float32))
    return state, timesteps.first(jnp.stack([state.position, state.velocity]))


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    del key
    push = (action - 1) * params.force - params.gravity * jnp.cos(3 * state.position)
    velocity = jnp.clip(state.velocity + push, -params.max_speed, params.max_speed)
    position = jnp.clip(state.position + velocity, params.min_position, params.max_position)
    velocity = jnp.where((position == params.min_position) & (velocity < 0), 0.0, velocity)
    state = State(position=position, velocity=velocity)
    return state, timesteps.following(
        jnp.stack([position, velocity]),
        -1.0,
        (position >= params.goal_position) & (velocity >= params.goal_velocity),
    )


def _expert(state: State, params: Params) -> Array:
    """Push the way the car rolls, so that each swing is higher."""
    del params
    return jnp.where(state.velocity < 0, 0, 2)


def _render(state: State, params: Params) -> np.ndarray:
    return hill_frame(
        float(state.position),
        float(params.goal_position),
        float(params.min_position),
        float(params.max_position),
    )


def hill_frame(position: float, goal: float, low: float, high: float) -> np.ndarray:
    """Draw the car at `position` on the hill `sin(3 x)` between `low` and `high`, with a flag at
    `goal`: uint8 [300, 400, 3]."""
    left, right = low - 0.1, high + 0.1
    scale = 400 / (right - left)
    canvas = drawing.Canvas(400, 300, scale=scale, origin=(-left * scale, 262))

    def height(x: float) -> float:
        return 0.45 * math.sin(3 * x) + 0.45

    ridge = [(float(x), height(x)) for x in np.linspace(left, right, 120)]
    canvas.polygon([*ridge, (right, -1.0), (left, -1.0)], drawing.SHADE)
    canvas.line(ridge, drawing.STEEL, 0.012)
    canvas.line([(low - 0.09, height(low) + 0.25), (low - 0.09, -1.0)], drawing.STEEL, 0.02)

    foot = (goal, height(goal))
    canvas.line([foot, (goal, foot[1] + 0.2)], drawing.INK, 0.01)
    canvas.polygon(
        [(goal, foot[1] + 0.2), (goal + 0.09, foot[1] + 0.165), (goal, foot[1] + 0.13)],
        drawing.GREEN,
    )

    # The car's axes: along the slope, and away from the ground.
    slope = 1.35 * math.cos(3 * position)
    along = (1 / math.hypot(1, slope), slope / math.hypot(1, slope))

    def body(forward: float, up: float) -> tuple[float, float]:
        return (
            position + forward * along[0] - up * along[1],
            height(position) + forward * along[1] + up * along[0],
        )

    hull = [(-0.08, 0.03), (0.08, 0.03), (0.08, 0.07), (0.04, 0.1), (-0.05, 0.1), (-0.08, 0.07)]
    canvas.polygon([body(*corner) for corner in hull], drawing.BLUE)
    for wheel in (-0.045, 0.045):
        canvas.circle(body(wheel, 0.028), 0.028, drawing.INK)
        canvas.circle(body(wheel, 0.028), 0.012, drawing.SHADE)
    return canvas.frame()
