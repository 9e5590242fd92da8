"""A speaker knows where to go but cannot move, and a listener can move but does not know where.

A room of `size` x `size` cells without walls, with three landmarks, each in a cell of even row and
column, so that none is in the way of another. Two agents act at the same time for one reward. The
speaker sees the target landmark and says one of six words; the listener hears it one step later,
and walks. Observation: `speaker` float32 [3], the target landmark, one-hot; `listener` float32
[12], rows and columns from it to each landmark, in units of the room's size, and the word that it
heard, one-hot (zeros at first). Actions: `speaker` a word, 0 to 5; `listener` compass steps, 0
east, 1 south, 2 west, 3 north, and 4 to stay. All words are legal, and the steps that stay in the
room. Reward: 1 for arriving at the target landmark, 0 at another, else 0; the metric `success` is
the same. Privileged: `state`, float32 [15], the two observations concatenated. Terminates at every
landmark; time limit 4 * size steps. The listener starts anywhere else.

Words mean nothing at first. A listener that hears nothing useful finds the right landmark one time
in three at best; one that understands can wait for a word, so the best return is 1. There are more
words than landmarks because agents that learn with few words often settle on one word for two
landmarks. After the cooperative communication task of Lowe et al. (2017), "Multi-agent actor-critic
for mixed cooperative-competitive environments", where the listener moves continuously in a plane
and the reward depends on distance. Expert: says the number of the landmark, and goes to it by a
path past the others, without waiting.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids import levels, paths
from jaxrl.envs.grids.corners import MOVES
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

LANDMARKS = 3
WORDS = 6
SILENCE = -1  # before the first word
STEPS = np.append(MOVES, np.zeros((1, 2), np.int32), axis=0)  # the last one stays


@struct
class State:
    place: Array  # int32 [2]: row and column of the listener
    landmarks: Array  # int32 [3, 2]
    asked: Array  # int32: number of the target landmark
    heard: Array  # int32: the word that was heard, or SILENCE


@functools.cache
def speaker_listener(size: int = 5) -> Environment:
    """The room of `size` x `size` cells; `size` is at least 3."""
    at_least("speaker_listener", "size", size, 3)
    even = np.array([(i, j) for i in range(0, size, 2) for j in range(0, size, 2)], np.int32)

    def inside(places: Array) -> Array:
        return ((places >= 0) & (places < size)).all(-1)

    def at(places: Array) -> Array:
        """Return which cells are among `places` [n, 2]: bool [size, size]."""
        return jnp.zeros((size, size), bool).at[places[:, 0], places[:, 1]].set(True)

    def outputs(state: State) -> tuple[dict, dict]:
        """Return the observation and the other channels."""
        way = (state.landmarks - state.place) / size
        speaker = jax.nn.one_hot(state.asked, LANDMARKS)
        listener = jnp.append(way, jax.nn.one_hot(state.heard, WORDS))
        legal = {"speaker": jnp.ones(WORDS, bool), "listener": inside(state.place + STEPS)}
        privileged = {"state": jnp.append(speaker, listener)}
        observation = {"speaker": speaker, "listener": listener}
        return observation, {"legal_actions": legal, "privileged": privileged}

    def reset(key: Key, params: tuple) -> tuple[State, TimeStep]:
        landmark_key, place_key, asked_key = jax.random.split(key, 3)
        # Cells with the greatest of random numbers: distinct ones, without a sort.
        chosen = jax.lax.top_k(jax.random.uniform(landmark_key, (len(even),)), LANDMARKS)[1]
        landmarks = jnp.asarray(even)[chosen]
        place = levels.pick(place_key, ~at(landmarks))
        asked = jax.random.randint(asked_key, (), 0, LANDMARKS)
        place = jnp.stack([place // size, place % size])
        state = State(place, landmarks, asked, jnp.int32(SILENCE))
        observation, channels = outputs(state)
        no = {"success": jnp.zeros((), jnp.float32)}
        return state, timesteps.first(observation, metrics=no, **channels)

    def step(key: Key, state: State, action: dict, params: tuple) -> tuple[State, TimeStep]:
        del key, params
        place = jnp.clip(state.place + jnp.asarray(STEPS)[action["listener"]], 0, size - 1)
        here = (place == state.landmarks).all(1)
        reward = here[state.asked].astype(jnp.float32)
        state = State(place, state.landmarks, state.asked, action["speaker"])
        observation, channels = outputs(state)
        metrics = {"success": reward}
        return state, timesteps.following(
            observation, reward, here.any(), metrics=metrics, **channels
        )

    def expert(state: State, params: tuple) -> dict:
        del params
        asked = at(state.landmarks[state.asked][None])
        enter = jnp.where(at(state.landmarks) & ~asked, paths.FAR, np.int16(1))
        enter = jnp.broadcast_to(enter, (4, size, size))
        walk = paths.compass_action(enter, paths.by_compass(enter, asked), *state.place)
        return {"speaker": state.asked, "listener": walk}

    def render(state: State, params: tuple) -> np.ndarray:
        """Draw the words in a row above the room, the one that was heard colored."""
        del params
        colors = np.full((size + 1, max(size, WORDS), 3), drawing.SHADE, np.uint8)
        colors[1:, :size] = drawing.PAPER
        for i, (row, column) in enumerate(np.asarray(state.landmarks)):
            asked = i == int(state.asked)
            colors[row + 1, column] = drawing.GREEN if asked else drawing.RED
        if int(state.heard) != SILENCE:
            colors[0, int(state.heard)] = drawing.ORANGE
        colors[int(state.place[0]) + 1, int(state.place[1])] = drawing.BLUE
        return drawing.tiles(colors, 32)

    return time_limit(
        Environment(
            name="speaker_listener",
            reset=reset,
            step=step,
            params=(),
            observation_space={
                "speaker": Box(0.0, 1.0, (LANDMARKS,)),
                "listener": Box(-1.0, 1.0, (2 * LANDMARKS + WORDS,)),
            },
            action_space={"speaker": Discrete(WORDS), "listener": Discrete(len(STEPS))},
            render=render,
            expert=expert,
        ),
        4 * size,
    )
