"""Drive a weak car out of a valley with a continuous throttle, using little of it.

Observation: float32 [2]: position (in [-1.2, 0.6]) and velocity (in [-0.07, 0.07]). Action: float32
[1], the throttle, whose force is clipped to [-1, 1]. Reward: -0.1 action^2 (of the action as given,
not as clipped), plus 100 when the goal is reached. Terminates at position 0.45 or beyond with a
velocity of at least 0; time limit 999 steps. The left wall stops the car. Moore (1990), "Efficient
memory-based learning for robot control"; the dynamics of Gymnasium's `MountainCarContinuous-v0`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.classic.mountain_car import hill_frame
from jaxrl.envs.wrappers.time_limit import time_limit


@struct
class Params:
    power: float = 0.0015  # velocity gained in one step at full throttle
    gravity: float = 0.0025  # velocity lost per step, times cos(3 position)
    min_action: float = -1.0  # lower bound to which the throttle is clipped
    max_action: float = 1.0  # upper bound to which the throttle is clipped
    min_position: float = -1.2  # position of the left wall
    max_position: float = 0.6  # right end of the track
    max_speed: float = 0.07  # largest magnitude of the velocity
    goal_position: float = 0.45  # position from which the goal is reached
    goal_velocity: float = 0.0  # least velocity at which the goal counts
    reset_low: float = -0.6  # lower bound of the start position; the car starts at rest
    reset_high: float = -0.4  # upper bound of the start position


@struct
class State:
    position: Array
    velocity: Array


@functools.cache
def mountain_car_continuous() -> Environment:
    """The mountain car with a throttle, limited to 999 steps."""
    return time_limit(
        Environment(
            name="mountain_car_continuous",
            reset=_reset,
            step=_step,
            params=Params(),
            observation_space=Box((-1.2, -0.07), (0.6, 0.07), (2,)),
            action_space=Box(-1.0, 1.0, (1,)),
            render=_render,
            expert=_expert,
        ),
        999,
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    position = jax.random.uniform(key, (), jnp.float32, params.reset_low, params.reset_high)
    state = State(position=position, velocity=jnp.zeros((), jnp.float32))
    return state, timesteps.first(jnp.stack([state.position, state.velocity]))


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    del key
    throttle = jnp.clip(action[0], params.min_action, params.max_action)
    push = throttle * params.power - params.gravity * jnp.cos(3 * state.position)
    velocity = jnp.clip(state.velocity + push, -params.max_speed, params.max_speed)
    position = jnp.clip(state.position + velocity, params.min_position, params.max_position)
    velocity = jnp.where((position == params.min_position) & (velocity < 0), 0.0, velocity)
    terminated = (position >= params.goal_position) & (velocity >= params.goal_velocity)
    state = State(position=position, velocity=velocity)
    return state, timesteps.following(
        jnp.stack([position, velocity]),
        jnp.where(terminated, 100.0, 0.0) - 0.1 * action[0] ** 2,
        terminated,
    )


def _expert(state: State, params: Params) -> Array:
    """Push the way the car rolls, so that each swing is higher."""
    del params
    return jnp.where(state.velocity < 0, -1.0, 1.0)[None]


def _render(state: State, params: Params) -> np.ndarray:
    return hill_frame(
        float(state.position),
        float(params.goal_position),
        float(params.min_position),
        float(params.max_position),
    )
