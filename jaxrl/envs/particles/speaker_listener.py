"""A speaker that cannot move sees which of three landmarks is asked for; a listener goes there.

Observation: `speaker` float32 [3], 0.65 for the target and 0.15 for the others; `listener` float32
[11], its velocity, where the landmarks are from here, and what the speaker said in the last step
(zeros at first). Actions: the speaker says three numbers, or one of three words. Reward: minus the
squared distance of the listener to the target, to each. Metric `success`: whether it is within
0.1 m. Nobody collides. Mechanics, actions and source are those of `particles.mechanics`. Expert:
says the target, and goes to what was said last.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment
from jaxrl.envs import drawing
from jaxrl.envs.particles.mechanics import Params, Scenario, State, make_particles, seek
from jaxrl.envs.planar import vectors

AGENTS = ("speaker", "listener")
LANDMARKS = 3
NEAR = 0.1  # m


def _see(state: State) -> dict[str, Array]:
    asked = jnp.where(jnp.arange(LANDMARKS) == state.target, 0.65, 0.15)
    around = (state.place[2:] - state.place[1]).ravel()
    return {"speaker": asked, "listener": jnp.concatenate([state.velocity[1], around, state.said])}


def _distance(state: State) -> Array:
    return vectors.norm(state.place[1] - state.place[2 + state.target])


def _reward(state: State, params: Params) -> Array:
    del params
    return jnp.full(2, -jnp.square(_distance(state)))


def _steer(state: State, params: Params) -> Array:
    del params
    heard = (state.said > 0.5).any()
    go = seek(state, 1, state.place[2 + state.said.argmax()])
    return jnp.stack([jnp.zeros(2), jnp.where(heard, go, 0.0)])


def _colors(target: int) -> Sequence[tuple[int, int, int]]:
    marks = [drawing.GREEN if i == target else drawing.STEEL for i in range(LANDMARKS)]
    return [drawing.ORANGE, drawing.BLUE, *marks]


@functools.cache
def simple_speaker_listener(actions: str = "continuous", reward: str = "sum") -> Environment:
    """`actions`: "continuous" or "discrete". `reward`: "sum" or "each"."""
    scenario = Scenario(
        AGENTS,
        LANDMARKS,
        Params(
            np.array([0.075] * 2 + [0.04] * LANDMARKS, np.float32),
            np.array([5.0, 5.0], np.float32),
            np.array([np.inf, np.inf], np.float32),
        ),
        np.zeros(2 + LANDMARKS, bool),
        _see,
        _reward,
        _steer,
        _colors,
        words=LANDMARKS,
        metrics=lambda state, params: {"success": (_distance(state) < NEAR).astype(jnp.float32)},
    )
    return make_particles("simple_speaker_listener", scenario, actions, reward)
