"""Collect the fruits, whose values make up the reward: van Seijen et al.'s Fruit Collection.

A room of 10 x 10 cells without walls, in which `places` cells, always the same, may hold a fruit;
at the start a random half of them do, and the agent stands on a random other cell. Observation:
uint8 [10, 10, 2]: where the agent is, where a fruit is. Actions: compass steps, 0 east, 1 south, 2
west, 3 north; the edges of the room stop them. Reward: `fruit_reward` for each fruit, which is then
gone; the channel `reward_components` holds the reward of each place (`fruit_00`, `fruit_01`...).
Terminates with the last fruit; time limit 300 steps. After the toy problem of van Seijen et al.
(2017), "Hybrid reward architecture for reinforcement learning", section 4.1. Metric `fruits`:
number collected so far. Expert: goes to the nearest fruit.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

SIZE = 10
MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)], np.int32)  # row, column


@struct
class Params:
    fruit_reward: float = 1.0  # reward for each fruit


@struct
class State:
    place: Array  # int32 [2]: row, column of the agent
    fruits: Array  # bool [places]: whether the fruit is still there


@functools.cache
def fruit_collection(places: int = 10) -> Environment:
    """The room with `places` cells for fruits, from 2 to 99, limited to 300 steps."""
    at_least("fruit_collection", "places", places, 2)
    if places >= SIZE * SIZE:
        raise UserError(f"'fruit_collection' has {SIZE * SIZE} cells, too few for {places} places.")
    order = np.random.default_rng(0).permutation(SIZE * SIZE)
    cells = np.stack(np.divmod(order, SIZE), -1).astype(np.int32)
    trees, free = cells[:places], cells[places:]
    names = [f"fruit_{i:02d}" for i in range(places)]

    def observe(state: State) -> Array:
        empty = jnp.zeros((SIZE, SIZE, 2), jnp.uint8)
        seen = empty.at[trees[:, 0], trees[:, 1], 1].set(state.fruits.astype(jnp.uint8))
        return seen.at[state.place[0], state.place[1], 0].set(1)

    def channels(state: State, rewards: Array) -> dict:
        left = state.fruits.sum().astype(jnp.float32)
        return {
            "reward_components": {name: rewards[i] for i, name in enumerate(names)},
            "metrics": {"fruits": places // 2 - left},
        }

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        del params
        where, which = jax.random.split(key)
        place = jnp.asarray(free)[jax.random.randint(where, (), 0, len(free))]
        fruits = jax.random.permutation(which, jnp.arange(places) < places // 2)
        state = State(place, fruits)
        return state, timesteps.first(observe(state), **channels(state, jnp.zeros(places)))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        del key
        place = jnp.clip(state.place + jnp.asarray(MOVES)[action], 0, SIZE - 1)
        eaten = state.fruits & (place == trees).all(-1)
        after = State(place, state.fruits & ~eaten)
        rewards = jnp.float32(params.fruit_reward) * eaten
        return after, timesteps.following(
            observe(after), rewards.sum(), ~after.fruits.any(), **channels(after, rewards)
        )

    def expert(state: State, params: Params) -> Array:
        del params
        ways = trees - state.place
        distance = jnp.where(state.fruits, jnp.abs(ways).sum(-1), 2 * SIZE)
        down, right = ways[distance.argmin()]
        sideways = jnp.where(right > 0, 0, 2)
        return jnp.where(right != 0, sideways, jnp.where(down > 0, 1, 3)).astype(jnp.int32)

    def render(state: State, params: Params) -> np.ndarray:
        del params
        colors = np.full((SIZE, SIZE, 3), drawing.PAPER, np.uint8)
        colors[trees[:, 0], trees[:, 1]] = drawing.SHADE
        left = trees[np.asarray(state.fruits)]
        colors[left[:, 0], left[:, 1]] = drawing.RED
        colors[int(state.place[0]), int(state.place[1])] = drawing.BLUE
        return drawing.tiles(colors, 16)

    return time_limit(
        Environment(
            name="fruit_collection",
            reset=reset,
            step=step,
            params=Params(),
            observation_space=Box(0, 1, (SIZE, SIZE, 2), jnp.uint8),
            action_space=Discrete(4),
            render=render,
            expert=expert,
            scores={"fruits": "fruits"},
        ),
        300,
    )
