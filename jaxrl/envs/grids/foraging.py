"""Level-based foraging: agents gather food that one of them may be too weak to lift alone.

A field of `size` x `size` cells with `foods` pieces of food, none at the edge or near another one,
each with a level from 1 to the sum of the three lowest levels of agents (with `cooperative` always
that sum). Agents have levels from 1 to `max_level`. Agents beside a piece of food that all load in
the same step lift it if the sum of their levels is its level or more. Actions: 0 nothing, 1 north,
2 south, 3 west, 4 east, 5 load; food is in the way, and moves follow the one rule of `grids.crowd`.
Illegal are steps off the field or to food, and loading where there is none; they do nothing.

Reward: of each agent that lifts food, its share of the levels that lifted it times the food's share
of all levels of food, so that all can earn 1 together; each agent that loads in vain loses
`penalty`. With reward="each" float32 [N], with "sum" (as in common-reward experiments) their sum.
Terminates when all food is gone; time limit 50 steps. Metric `collected`: the share of the levels
of food that is gone.

Observation "vector", float32 [3 (foods + agents)]: row, column and level of each food within
`sight` (in the order of rows and columns) and of each agent (oneself first), relative to the upper
left cell in sight, and -1, -1, 0 for what is missing. Observation "grid", float32 [2 sight + 1,
2 sight + 1, 3]: levels of agents, levels of food, and whether a cell can be entered. Sight 0 shows
the whole field. Privileged: `state`, rows, columns and levels of all food and all agents. Expert:
all go to the nearest food that they can lift together, and load there as soon as enough have come.

The environment of Albrecht and Ramamoorthy (2013) and Papoudakis et al. (2021), "Benchmarking
multi-agent deep reinforcement learning algorithms in cooperative tasks", arXiv:2006.07869, by the
rules of version 3 of its package lbforaging, with whose recorded steps it agrees in places, food,
legal actions, observations and rewards. Three things differ: an agent that is blocked blocks
whoever wants its cell (there two may end in one cell), the end by the clock is truncated, and the
channels of "grid" come last.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids import levels, paths
from jaxrl.envs.grids.crowd import NEIGHBORS, Crowd
from jaxrl.envs.options import at_least, one_of
from jaxrl.envs.wrappers.time_limit import time_limit

MAX_STEPS = 50
LOAD = 5
ACTIONS = 6
# Steps of the actions: nothing, north, south, west, east, load.
STEPS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], np.int32)
_OF_COMPASS = np.array([4, 2, 3, 1], np.int32)  # actions of east, south, west, north


@struct
class Params:
    """Parameters of foraging."""

    penalty: float = 0.0  # what an agent that loads in vain loses


@struct
class State:
    crowd: Crowd
    level: Array  # int32 [N]
    food: Array  # int32 [F, 2], in the order of rows and columns
    food_level: Array  # int32 [F], 0 for food that is gone
    total: Array  # int32, levels of all food at the start


def _compact(rows: Array, seen: Array) -> Array:
    """Return those rows [n, 3] that are seen, in order, and (-1, -1, 0) for each that is not."""
    rank = jnp.where(seen, jnp.cumsum(seen) - 1, len(seen))
    blank = jnp.broadcast_to(jnp.array([-1, -1, 0], rows.dtype), rows.shape)
    return blank.at[rank].set(rows, mode="drop")


@functools.cache
def foraging(
    size: int = 8,
    agents: int = 2,
    foods: int = 3,
    max_level: int = 2,
    cooperative: bool = False,
    sight: int = 0,
    observation: str = "vector",
    reward: str = "sum",
) -> Environment:
    """A field of `size` x `size` cells, at least 5; at least 2 `agents` and 1 of `foods`.
    `observation`: "vector" or "grid". `reward`: "sum" or "each"."""
    name = "foraging"
    for option, value, least in (
        ("size", size, 5),
        ("agents", agents, 2),
        ("foods", foods, 1),
        ("max_level", max_level, 1),
        ("sight", sight, 0),
    ):
        at_least(name, option, value, least)
    one_of(name, "observation", observation, ("vector", "grid"))
    one_of(name, "reward", reward, ("sum", "each"))
    names = tuple(f"agent_{i}" for i in range(agents))
    shape, reach = (size, size), sight or size
    rows, columns = levels.rows_and_columns(shape)
    inner = (rows > 0) & (rows < size - 1) & (columns > 0) & (columns < size - 1)

    def field(state: State) -> Array:
        """Return the levels of food, int32 [H, W]."""
        return crowds.mark(state.food, shape, state.food_level)

    def legal(state: State, field: Array) -> Array:
        """Return the legal actions of each agent, bool [N, 6]."""
        around = jnp.pad(field, 1, constant_values=-1)
        target = state.crowd.place[:, None] + jnp.asarray(STEPS[1:LOAD]) + 1
        there = around[target[..., 0], target[..., 1]]  # [N, 4]
        load = (there > 0).any(1, keepdims=True)
        return jnp.concatenate([jnp.ones_like(load), there == 0, load], 1)

    def see(state: State, field: Array) -> Array:
        """Return the observations of all agents, [N, ...]."""
        place, level = state.crowd.place, state.level
        if observation == "grid":
            crowded = crowds.mark(place, shape, level)
            planes = jnp.stack([crowded, field, (crowded == 0) & (field == 0)], -1)
            return crowds.look(planes.astype(jnp.float32), place, reach)

        def view(i: int) -> Array:
            shift = jnp.minimum(reach, place[i]) - place[i]
            others = jnp.concatenate([place[i : i + 1], place[:i], place[i + 1 :]])
            theirs = jnp.concatenate([level[i : i + 1], level[:i], level[i + 1 :]])
            moved = others + shift
            met = ((moved >= 0) & (moved <= 2 * reach)).all(1)
            near = (jnp.abs(state.food - place[i]) <= reach).all(1) & (state.food_level > 0)
            food = jnp.concatenate([state.food + shift, state.food_level[:, None]], 1)
            crowd = jnp.concatenate([moved, theirs[:, None]], 1)
            both = jnp.concatenate([_compact(food, near), _compact(crowd, met)])
            return both.reshape(-1).astype(jnp.float32)

        return jnp.stack([view(i) for i in range(agents)])

    def channels(state: State) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        now = field(state)
        by_name = lambda x: {n: x[i] for i, n in enumerate(names)}
        food = jnp.concatenate([state.food, state.food_level[:, None]], 1)
        crowd = jnp.concatenate([state.crowd.place, state.level[:, None]], 1)
        whole = jnp.concatenate([food, crowd]).reshape(-1).astype(jnp.float32)
        collected = 1 - state.food_level.sum() / jnp.maximum(state.total, 1)
        more = {
            "legal_actions": by_name(legal(state, now)),
            "privileged": {"state": whole},
            "metrics": {"collected": collected.astype(jnp.float32)},
        }
        return by_name(see(state, now)), more

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        del params
        level_key, *keys = jax.random.split(key, 1 + agents + 2 * foods)
        level = jax.random.randint(level_key, (agents,), 1, max_level + 1)
        empty, place = jnp.ones(shape, bool), []
        for i in range(agents):
            index = levels.pick(keys[i], empty)
            place.append(jnp.stack([index // size, index % size]))
            empty &= (rows != place[-1][0]) | (columns != place[-1][1])
        most = jnp.sort(level)[:3].sum()
        least = most if cooperative else 1
        empty &= inner
        food, food_level = [], []
        for i in range(foods):
            place_key, food_key = keys[agents + 2 * i : agents + 2 * i + 2]
            index = levels.pick(place_key, empty)
            drawn = jax.random.randint(food_key, (), least, most + 1)
            food_level.append(jnp.where(empty.any(), drawn, 0))
            food.append(jnp.stack([index // size, index % size]))
            apart = [jnp.abs(x - y) for x, y in zip((rows, columns), food[-1], strict=True)]
            longer, shorter = jnp.maximum(*apart), jnp.minimum(*apart)
            empty &= (longer > 1) & ((longer > 2) | (shorter > 0))
        food, food_level = jnp.stack(food), jnp.stack(food_level)
        order = jnp.argsort(food[:, 0] * size + food[:, 1])
        crowd = crowds.gather(jnp.stack(place))
        state = State(crowd, level, food[order], food_level[order], food_level.sum())
        seen, more = channels(state)
        return state, timesteps.first(seen, jnp.zeros(agents if reward == "each" else ()), **more)

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        del key
        chosen = jnp.stack([action[n] for n in names])
        now = field(state)
        allowed = jnp.take_along_axis(legal(state, now), chosen[:, None], 1)[:, 0]
        chosen = jnp.where(allowed, chosen, 0)
        crowd = crowds.move(state.crowd, jnp.asarray(STEPS)[chosen], now > 0)
        # Loading agents stay, and each has one piece of food beside it at most.
        there = state.food_level > 0
        loads = (chosen == LOAD)[:, None] & crowds.beside(crowd.place, state.food) & there  # [N, F]
        power = (loads * state.level[:, None]).sum(0)
        lifted = loads.any(0) & (power >= state.food_level)
        worth = state.food_level / jnp.maximum(power * state.total, 1)
        share = jnp.where(loads & lifted, state.level[:, None] * worth, 0.0)
        vain = jnp.where(loads & ~lifted, params.penalty, 0.0)
        paid = (share - vain).sum(1)
        left = jnp.where(lifted, 0, state.food_level)
        state = State(crowd, state.level, state.food, left, state.total)
        seen, more = channels(state)
        paid = paid if reward == "each" else paid.sum()
        return state, timesteps.following(seen, paid, (left == 0).all(), **more)

    def expert(state: State, params: Params) -> dict:
        del params
        place, now = state.crowd.place, field(state)
        here = crowds.mark(place, shape)
        enter = jnp.broadcast_to(jnp.where(now > 0, paths.FAR, np.int16(1)), (4, size, size))
        able = (state.food_level > 0) & (state.food_level <= state.level.sum())
        far = jnp.abs(place[:, None] - state.food).sum(-1).max(0)
        aim = state.food[jnp.where(able, far, 4 * size).argmin()]
        near = crowds.mark(aim + jnp.asarray(NEIGHBORS), shape)
        ready = crowds.beside(place, aim[None])[:, 0]
        enough = (ready * state.level).sum() >= now[aim[0], aim[1]]
        taken, moves = here, {}
        for i, agent in enumerate(names):
            mine = crowds.mark(place[i : i + 1], shape)
            # Cells of others are dear, so that a path around them is taken where there is one.
            cost = enter + jnp.where(here & ~mine, np.int16(size), np.int16(0))
            distance = paths.by_compass(cost, near & (mine | ~here) & (now == 0), 3 * size)
            way = paths.compass_action(cost, distance, place[i, 0], place[i, 1])
            goal = jnp.clip(place[i] + jnp.asarray(NEIGHBORS)[way], 0, size - 1)
            free = ~taken[goal[0], goal[1]]
            walk = jnp.where(free, jnp.asarray(_OF_COMPASS)[way], 0)
            stands = jnp.where(enough, LOAD, 0)
            moves[agent] = jnp.where(ready[i], stands, walk).astype(jnp.int32)
            taken |= crowds.mark(goal[None], shape) & ~ready[i]
        return moves

    def render(state: State, params: Params) -> np.ndarray:
        del params
        ground = np.full((size, size, 3), drawing.PAPER, np.uint8)
        colors = [drawing.BLUE] * agents
        picture, places = crowds.draw(ground, state.crowd, colors)
        dot = lambda row, column, i, n: picture.disc(
            row, column, 0.5 + 0.14 * (i - (n - 1) / 2), 0.5, 0.06, drawing.PAPER
        )
        for (row, column), level in zip(np.asarray(state.food), state.food_level, strict=True):
            if int(level):
                picture.disc(row, column, 0.5, 0.5, 0.4, drawing.GREEN)
            for i in range(int(level)):
                dot(row, column, i, int(level))
        for (row, column), level in zip(places, state.level, strict=True):
            for i in range(int(level)):
                dot(row, column, i, int(level))
        return picture.frame()

    top = max(size - 1, 3 * max_level)
    if observation == "vector":
        box = Box(-1.0, float(max(top, 2 * reach)), (3 * (foods + agents),))
    else:
        box = Box(0.0, float(3 * max_level), (2 * reach + 1, 2 * reach + 1, 3))
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space=dict.fromkeys(names, box),
        action_space=dict.fromkeys(names, Discrete(ACTIONS)),
        render=render,
        expert=jax.jit(expert, inline=True),
        scores={"collected": "collected"},
        agents=names,
    )
    return time_limit(environment, MAX_STEPS)
