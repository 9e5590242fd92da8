"""Push two masses between springs to places that change.

Observation: float32 [6]: the positions of the masses, their velocities, and the two places where
they should be. Action: float32 [2], the forces on the masses, clipped to [-1, 1], times 30. A
spring and a damper join the first mass to a wall, the two masses, and the second mass to the other
wall; positions are relative to rest. Reward: the sum over masses of -log(|error| + 0.01). Each
mass has one place in an episode, or, as often, another one from its middle on; all are uniform in
[-1.5, 1.5]. Never terminates; time limit 100 steps of 0.2 s, by the explicit Euler method. The task
"DMSD" of NeoRL-2 (Gao et al., 2025, "NeoRL-2: Near real-world benchmarks for offline reinforcement
learning with extended realistic scenarios", arXiv:2503.19267), as in the authors' code, which takes
it from Char et al.; `mass` is 20 in their data and 30 in their other simulator. The expert cancels
springs and dampers and is a proportional-derivative controller beyond that.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.wrappers.time_limit import time_limit

STEPS = 100
FORCE = 30.0
PROPORTIONAL, DERIVATIVE = 6.0, 4.0  # gains of the expert, per s^2 and per s


@struct
class Params:
    mass: float = 20.0  # of each of the two masses
    damping: float = 4.0  # of each of the three dampers
    stiffness: float = 2.0  # of each of the three springs
    farthest: float = 1.5  # largest distance of a place from rest
    start_position: float = 0.25  # largest distance from rest at the start
    start_velocity: float = 0.1  # largest speed at the start
    dt: float = 0.2  # s, length of a step


@struct
class State:
    physics: Array  # [4]: positions and velocities
    places: Array  # [2, 2]: of each mass, in the first and the second half of the episode
    steps: Array  # int32


@functools.cache
def double_mass() -> Environment:
    """The two masses, limited to 100 steps."""
    return time_limit(
        Environment(
            name="double_mass",
            reset=_reset,
            step=_step,
            params=Params(),
            observation_space=Box(-np.inf, np.inf, (6,)),
            action_space=Box(-1.0, 1.0, (2,)),
            render=_render,
            step_seconds=lambda state, params: params.dt,
            expert=_expert,
        ),
        STEPS,
    )


def _place(state: State) -> Array:
    return jnp.where(state.steps < STEPS // 2, state.places[:, 0], state.places[:, 1])


def _observation(state: State) -> Array:
    return jnp.concatenate([state.physics, _place(state)])


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    place_key, twice_key, start_key = jax.random.split(key, 3)
    drawn = jax.random.uniform(place_key, (2, 2), jnp.float32, -1.0, 1.0) * params.farthest
    twice = jax.random.bernoulli(twice_key, shape=(2,))
    second = jnp.where(twice, drawn[:, 1], drawn[:, 0])
    physics = jax.random.uniform(start_key, (4,), jnp.float32, -1.0, 1.0)
    scale = jnp.stack([params.start_position] * 2 + [params.start_velocity] * 2)
    places = jnp.stack([drawn[:, 0], second], 1)
    state = State(scale * physics, places, jnp.zeros((), jnp.int32))
    return state, timesteps.first(_observation(state))


def _pull(physics: Array, params: Params) -> Array:
    """Return the forces of springs and dampers on the masses."""
    both = params.stiffness * physics[:2] + params.damping * physics[2:]
    return both[::-1] - 2 * both


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    del key
    force = FORCE * jnp.clip(action, -1.0, 1.0)
    position, velocity = state.physics[:2], state.physics[2:]
    physics = jnp.concatenate(
        [
            position + params.dt * velocity,
            velocity + params.dt / params.mass * (_pull(state.physics, params) + force),
        ]
    )
    state = State(physics, state.places, state.steps + 1)
    error = jnp.abs(physics[:2] - _place(state))
    return state, timesteps.following(_observation(state), -jnp.log(error + 0.01).sum())


def _expert(state: State, params: Params) -> Array:
    position, velocity = state.physics[:2], state.physics[2:]
    wanted = PROPORTIONAL * (_place(state) - position) - DERIVATIVE * velocity
    force = params.mass * wanted - _pull(state.physics, params)
    return jnp.clip(force / FORCE, -1.0, 1.0)


def _render(state: State, params: Params) -> np.ndarray:
    """Draw the masses, above each other, and where they should be."""
    del params
    canvas = drawing.Canvas(400, 160, 80.0, (200.0, 80.0))
    for mass, (height, color) in enumerate(((0.4, drawing.BLUE), (-0.4, drawing.ORANGE))):
        place, target = float(state.physics[mass]), float(_place(state)[mass])
        canvas.line([(-2.4, height), (2.4, height)], drawing.SHADE, 0.03)
        canvas.line([(target, height - 0.25), (target, height + 0.25)], drawing.RED, 0.04)
        canvas.circle((place, height), 0.15, color)
    return canvas.frame()
