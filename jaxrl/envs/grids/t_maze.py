"""Read the sign at the start, walk the corridor, turn the way it said: Bakker's T-maze.

Observation: float32 [3]: (0, 1, 1) or (1, 1, 0) at the start, where the goal is up or down;
(1, 0, 1) in the corridor; (0, 1, 0) at the junction. Actions: compass steps, 0 east, 1 south, 2
west, 3 north. Reward: 4 for turning the right way at the junction, -0.1 for the wrong way and for
walking into a wall, else 0. Terminates with either turn; time limit 3 * (length + 1) steps (ours).
With `noisy` the corridor shows (a, 0, b), a and b uniform in [0, 1] at every step. Bakker (2001),
"Reinforcement Learning with Long Short-Term Memory"; the corridor is `length` steps long.
`level` is 0 for up, 1 for down, -1 for either. Expert: a shortest path (it knows the side).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.grids import cells, levels, pictures
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

_LONGEST_DRAWN = 20  # steps of corridor; a longer one is drawn with this length


@struct
class Params:
    level: int = levels.FRESH  # side of the goal: 0 up, 1 down, -1 either
    right_reward: float = 4.0  # reward for the right turn
    wrong_reward: float = -0.1  # reward for the wrong turn
    bump_reward: float = -0.1  # reward for walking into a wall


@struct
class State:
    position: Array  # int32, from 0 to `length`, where the junction is
    down: Array  # int32: 1 where the goal is south of the junction, else 0


@functools.cache
def t_maze(length: int = 10, noisy: bool = False) -> Environment:
    """The T-maze with a corridor of `length` steps."""
    at_least("t_maze", "length", length, 1)

    def observe(key: Key, state: State) -> Array:
        start, junction = state.position == 0, state.position == length
        sign = jnp.stack([state.down, jnp.int32(1), 1 - state.down]).astype(jnp.float32)
        ends = (jax.random.uniform(key, (2,)) if noisy else jnp.ones(2, jnp.float32))[:, None]
        corridor = ends * np.array([[1, 0, 0], [0, 0, 1]], np.float32)
        at_junction = jnp.array([0.0, 1.0, 0.0])
        return jnp.where(start, sign, jnp.where(junction, at_junction, corridor.sum(0)))

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        down = jax.random.bernoulli(key).astype(jnp.int32)
        down = jnp.where(params.level < 0, down, jnp.asarray(params.level, jnp.int32) % 2)
        state = State(jnp.zeros((), jnp.int32), down)
        no = jnp.zeros((), jnp.float32)
        # The start has no noise: any key will do.
        return state, timesteps.first(observe(key, state), metrics={"success": no})

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        east, west = action == cells.EAST, action == cells.WEST
        turned = (state.position == length) & ~east & ~west
        right = turned & ((action == cells.SOUTH) == (state.down == 1))
        position = jnp.clip(state.position + east - west, 0, length)
        bumped = (position == state.position) & ~turned
        after = State(position, state.down)
        reward = jnp.where(bumped, params.bump_reward, 0.0)
        reward = jnp.where(turned, params.wrong_reward, reward)
        reward = jnp.where(right, params.right_reward, reward)
        return after, timesteps.following(
            observe(key, after), reward, turned, metrics={"success": right.astype(jnp.float32)}
        )

    def expert(state: State, params: Params) -> Array:
        del params
        turn = jnp.where(state.down == 1, cells.SOUTH, cells.NORTH)
        return jnp.where(state.position == length, turn, cells.EAST).astype(jnp.int32)

    def render(state: State, params: Params) -> np.ndarray:
        del params
        drawn = min(length, _LONGEST_DRAWN)
        grid = np.full((5, drawn + 3), cells.WALL, np.uint8)
        grid[2, 1:-1] = cells.EMPTY
        grid[1:4, -2] = cells.EMPTY
        grid[3 if int(state.down) else 1, -2] = cells.GOAL
        return pictures.frame(grid, 2, 1 + round(int(state.position) * drawn / length))

    return time_limit(
        Environment(
            name="t_maze",
            reset=reset,
            step=step,
            params=Params(),
            observation_space=Box(0.0, 1.0, (3,)),
            action_space=Discrete(4),
            render=render,
            expert=expert,
        ),
        3 * (length + 1),
    )
