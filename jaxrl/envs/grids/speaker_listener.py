"""A speaker who knows where to go but cannot, and a listener who can but does not know.

A room of `size` x `size` cells without walls, with three landmarks in it. Two agents act at the
same time for one reward. The speaker sees which landmark is asked for and says one of three words;
the listener hears it one step later, and walks. Observation: of `speaker` float32 [3], the landmark
that is asked for, one-hot; of `listener` float32 [9], rows and columns from it to each landmark, in
sizes of the room, and the word that it heard, one-hot (zeros at first). Actions: of `speaker` a
word, 0 to 2; of `listener` steps by compass, 0 east, 1 south, 2 west, 3 north, and 4 to stop. Legal
are all words, and steps that stay in the room. Reward: 1 for stopping at the landmark that is asked
for, else 0; the metric `success` is the same. Privileged: `state`, float32 [12], both
observations, one after the other. Terminates when the listener stops; time limit 4 * size steps.

Words mean nothing at first. A listener who hears nothing that helps stops at the right landmark
once in three times at best; who understands can wait for a word, so that the best return is 1.
After cooperative communication of Lowe et al. (2017), "Multi-agent actor-critic for mixed
cooperative-competitive environments", where the listener flies in a plane and is paid by distance.
Expert: says the number of the landmark, and walks there without waiting for it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids.corners import MOVES
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

LANDMARKS = 3
STOP = len(MOVES)
SILENCE = -1  # before the first word


@struct
class State:
    place: Array  # int32 [2]: row and column of the listener
    landmarks: Array  # int32 [3, 2]
    asked: Array  # int32: number of a landmark
    heard: Array  # int32: a word, or SILENCE


@functools.cache
def speaker_listener(size: int = 5) -> Environment:
    """The room of `size` x `size` cells, at least 2."""
    at_least("speaker_listener", "size", size, 2)

    def emitted(state: State) -> tuple[dict, dict]:
        """Observation, and the channels."""
        way = (state.landmarks - state.place) / size
        observation = {
            "speaker": jax.nn.one_hot(state.asked, LANDMARKS),
            "listener": jnp.append(way, jax.nn.one_hot(state.heard, LANDMARKS)),
        }
        after = state.place + MOVES
        steps = ((after >= 0) & (after < size)).all(1)
        return observation, {
            "legal_actions": {
                "speaker": jnp.ones(LANDMARKS, bool),
                "listener": jnp.append(steps, True),
            },
            "privileged": {
                "state": jnp.append(observation["speaker"], observation["listener"]),
            },
        }

    def reset(key: Key, params: tuple) -> tuple[State, TimeStep]:
        place_key, asked_key = jax.random.split(key)
        # The greatest of random numbers: cells that differ, without a sort.
        cells = jax.lax.top_k(jax.random.uniform(place_key, (size**2,)), LANDMARKS + 1)[1]
        place, *landmarks = jnp.stack([cells // size, cells % size], 1)
        asked = jax.random.randint(asked_key, (), 0, LANDMARKS)
        state = State(place, jnp.stack(landmarks), asked, jnp.int32(SILENCE))
        observation, channels = emitted(state)
        no = {"success": jnp.zeros((), jnp.float32)}
        return state, timesteps.first(observation, metrics=no, **channels)

    def step(key: Key, state: State, action: dict, params: tuple) -> tuple[State, TimeStep]:
        del key, params
        stopped = action["listener"] == STOP
        move = jnp.append(MOVES, np.zeros((1, 2), np.int32), axis=0)[action["listener"]]
        place = jnp.clip(state.place + move, 0, size - 1)
        found = stopped & (place == state.landmarks[state.asked]).all()
        state = State(place, state.landmarks, state.asked, action["speaker"])
        observation, channels = emitted(state)
        reward = found.astype(jnp.float32)
        return state, timesteps.following(
            observation, reward, stopped, metrics={"success": reward}, **channels
        )

    def expert(state: State, params: tuple) -> dict:
        del params
        down, right = state.landmarks[state.asked] - state.place
        sideways, vertical = jnp.where(right > 0, 0, 2), jnp.where(down > 0, 1, 3)
        walk = jnp.where(right != 0, sideways, jnp.where(down != 0, vertical, STOP))
        return {"speaker": state.asked, "listener": walk.astype(jnp.int32)}

    def render(state: State, params: tuple) -> np.ndarray:
        """The words in a row above the room, the one that was heard as its landmark would be."""
        del params
        colours = np.full((size + 1, max(size, LANDMARKS), 3), drawing.PAPER, np.uint8)
        colours[0] = drawing.SHADE
        for i, (row, column) in enumerate(np.asarray(state.landmarks)):
            asked = i == int(state.asked)
            colours[row + 1, column] = drawing.GREEN if asked else drawing.RED
        if int(state.heard) != SILENCE:
            colours[0, int(state.heard)] = drawing.ORANGE
        colours[int(state.place[0]) + 1, int(state.place[1])] = drawing.BLUE
        return drawing.tiles(colours, 32)

    return time_limit(
        Environment(
            name="speaker_listener",
            reset=reset,
            step=step,
            params=(),
            observation_space={
                "speaker": Box(0.0, 1.0, (LANDMARKS,)),
                "listener": Box(-1.0, 1.0, (3 * LANDMARKS,)),
            },
            action_space={"speaker": Discrete(LANDMARKS), "listener": Discrete(STOP + 1)},
            render=render,
            expert=expert,
        ),
        4 * size,
    )
