"""Go to the corner that the task names; any other corner ends the episode too, and is wrong.

A room of `size` x `size` cells without walls, whose four corners are the possible goals.
Observation: float32 [2]: row and column of the agent, from 0 to 1. The goal is not in it but in the
`goal` channel: float32 [2], row and column of the corner `task` (0 .. 3: lower right, upper left,
lower left, upper right) on the same scale. Actions: compass steps, 0 east, 1 south, 2 west, 3
north; the edges of the room stop them. Reward: 1 for arriving in the right corner, `wrong_reward`
in another one, else 0; the metric `success` is 1 in the right one. Terminates in every corner; time
limit 4 * size steps. Starts uniformly in any cell that is not a corner.

Made for lives of several tasks: whatever leads to one corner is wrong for the others, so an agent
that learns one task after the other in one network forgets, and it shows: a policy for another
corner never succeeds, while a random one sometimes does. Expert: a shortest path, of at most 2 *
size - 3 steps.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)], np.int32)  # row, column
CORNERS = np.array([(1, 1), (0, 0), (1, 0), (0, 1)], np.float32)


@struct
class Params:
    task: int = 0  # corner to go to, 0 .. 3: lower right, upper left, lower left, upper right
    wrong_reward: float = -1.0  # reward for arriving in a wrong corner


@struct
class State:
    place: Array  # int32 [2]: row, column


@functools.cache
def corners(size: int = 5) -> Environment:
    """The room of `size` x `size` cells; `size` is at least 3."""
    at_least("corners", "size", size, 3)
    last = size - 1

    def normalize(place: Array) -> Array:
        return place.astype(jnp.float32) / last

    def goal(params: Params) -> Array:
        return jnp.asarray(CORNERS)[params.task]

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        cells = [(i, j) for i in range(size) for j in range(size)]
        starts = np.array([c for c in cells if not {*c} <= {0, last}], np.int32)
        place = jnp.asarray(starts)[jax.random.randint(key, (), 0, len(starts))]
        no = jnp.zeros((), jnp.float32)
        return State(place), timesteps.first(
            normalize(place), goal=goal(params), metrics={"success": no}
        )

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        del key
        place = jnp.clip(state.place + jnp.asarray(MOVES)[action], 0, last)
        here = normalize(place)
        arrived = ((place == 0) | (place == last)).all()
        right = (here == goal(params)).all()
        reward = jnp.where(right, 1.0, jnp.where(arrived, params.wrong_reward, 0.0))
        return State(place), timesteps.following(
            here,
            reward,
            arrived,
            goal=goal(params),
            metrics={"success": right.astype(jnp.float32)},
        )

    def expert(state: State, params: Params) -> Array:
        """Go sideways first, except along the upper and lower edge, where that might lead through
        another corner: there go up or down first, if needed."""
        there = goal(params).astype(jnp.int32) * last
        down, right = there - state.place
        edge = (state.place[0] == 0) | (state.place[0] == last)
        vertical = (down != 0) & (edge | (right == 0))
        sideways = jnp.where(right > 0, 0, 2)
        return jnp.where(vertical, jnp.where(down > 0, 1, 3), sideways).astype(jnp.int32)

    def render(state: State, params: Params) -> np.ndarray:
        colors = np.full((size, size, 3), drawing.PAPER, np.uint8)
        for i, (row, column) in enumerate((CORNERS * last).astype(int)):
            colors[row, column] = drawing.GREEN if i == int(params.task) else drawing.RED
        colors[int(state.place[0]), int(state.place[1])] = drawing.BLUE
        return drawing.tiles(colors, 32)

    return time_limit(
        Environment(
            name="corners",
            reset=reset,
            step=step,
            params=Params(),
            observation_space=Box(0.0, 1.0, (2,)),
            action_space=Discrete(4),
            render=render,
            expert=expert,
        ),
        4 * size,
    )
