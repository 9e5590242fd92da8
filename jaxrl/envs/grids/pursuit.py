"""Pursuit: agents, of whom there are more or fewer in each episode, surround evaders.

A field of `size` x `size` cells (8) with slots for `agents` (N, 4) pursuers and for `evaders`
(E, 2). How many pursuers are there is the parameter `present`, or drawn with each episode (0) from
2 to `most` (0: N): the first ones are, and the slots of others are masked (`alive`), see nothing
and do nothing. An evader is caught, and gone, as soon as `needed` (2) pursuers are beside it, at an
edge, or all that there are if they are fewer. Actions: 0 nothing, 1 north, 2 south, 3 west, 4 east;
moves follow the one rule of `grids.crowd`, so nobody shares a cell. Steps off the field are
illegal.

An evader moves with probability `nimble` (0.5), to that cell around it, or its own, which is
farthest from the nearest pursuer, of equal ones to a drawn one. Reward: the share of evaders that
are caught in this step, for all together. Terminates when all are caught; time limit 50 steps.
Metrics: `caught`, the share of evaders, and `pursuers`, the number of those that are there.

Observation, float32 [3 + 3 (N - 1 + E)]: own row and column, from 0 to 1, and 1; of each other
slot, in order, and each evader, how far down and right it is, as shares of the size, and 1; zeros
for what is not there, and for what is not within `sight` cells along both axes (0: all is seen).
With `listed` the same numbers are a dict: `others` [N - 1, 3], a row for each other slot, and `own`
[3 + 3 E], all else. Privileged: `state`, row, column and 1 of all slots and evaders, 0 for what is
not there. Expert: all go to the evader that is nearest to all of them together, and stay beside it.

After the pursuit domain of Benda, Jagannathan and Dodhiawala (1986), see Stone and Veloso, 2000,
"Multiagent systems: a survey from a machine learning perspective"; with a number of agents that
varies, as in the games of Zhang et al., 2021, "Learning meta representations for agents in
multi-agent reinforcement learning". Its numbers are choices of ours.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete, Space
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids.crowd import Crowd
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

MAX_STEPS = 50
# Steps of the actions: nothing, north, south, west, east.
STEPS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)


@struct
class Params:
    """Parameters of pursuit."""

    present: int = 0  # number of pursuers, from 1 to N; 0: drawn from 2 to `most`
    most: int = 0  # highest number of pursuers that is drawn, from 2 to N; 0: N
    needed: int = 2  # number of pursuers beside an evader that catch it
    nimble: float = 0.5  # probability that an evader moves


@struct
class State:
    crowd: Crowd  # the pursuers' slots, then the evaders


def distances(place: Array, others: Array) -> Array:
    """Return the number of steps from places [n, 2] to others [m, 2], without obstacles, [n, m]."""
    return jnp.abs(place[:, None] - others).sum(-1)


@functools.cache
def pursuit(
    size: int = 8, agents: int = 4, evaders: int = 2, sight: int = 0, listed: bool = False
) -> Environment:
    """A field of `size` x `size` cells, at least 4, with slots for at least 2 `agents`, and at
    least 1 of `evaders`, for all of whom there must be room."""
    name = "pursuit"
    for option, value, least in (
        ("agents", agents, 2),
        ("evaders", evaders, 1),
        ("sight", sight, 0),
        ("size", size, 4),
    ):
        at_least(name, option, value, least)
    at_least(name, "size * size", size * size, agents + evaders)
    names, count = tuple(f"agent_{i}" for i in range(agents)), agents + evaders
    wall, far = np.zeros((size, size), bool), 4 * size

    def inside(place: Array) -> Array:
        return ((place >= 0) & (place < size)).all(-1)

    def legal(crowd: Crowd) -> Array:
        """Return the legal actions of each pursuer, bool [N, 5]."""
        goal = crowd.place[:agents, None] + STEPS
        stays = jnp.asarray(STEPS == 0).all(-1)
        return inside(goal) & (crowd.alive[:agents, None] | stays)

    def see(crowd: Crowd) -> Tree:
        """Return the observations of all pursuers, [N, ...]."""
        place, alive = crowd.place, crowd.alive
        way = place - place[:agents, None]
        seen = alive & (jnp.abs(way) <= (sight or size)).all(-1)
        rows = jnp.concatenate([way / size, jnp.ones((agents, count, 1))], -1)
        rows = jnp.where(seen[..., None], rows, 0.0)
        # Without oneself: the rows before and behind.
        others = np.array([[j for j in range(count) if j != i] for i in range(agents)])
        rows = jnp.take_along_axis(rows, jnp.asarray(others)[..., None], 1)
        own = jnp.concatenate([place[:agents] / (size - 1), jnp.ones((agents, 1))], -1)
        whole = jnp.concatenate([own, rows.reshape(agents, -1)], -1)
        whole = jnp.where(alive[:agents, None], whole, 0.0).astype(jnp.float32)
        if not listed:
            return whole
        own, listing, targets = jnp.split(whole, [3, 3 * agents], -1)
        others = listing.reshape(agents, agents - 1, 3)
        return {"own": jnp.concatenate([own, targets], -1), "others": others}

    def channels(state: State) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        crowd, alive = state.crowd, state.crowd.alive
        by_name = lambda x: {n: jax.tree.map(lambda y, i=i: y[i], x) for i, n in enumerate(names)}
        whole = jnp.concatenate([crowd.place / (size - 1), jnp.ones((count, 1))], -1)
        whole = jnp.where(alive[:, None], whole, 0.0).reshape(-1)
        more = {
            "alive": alive[:agents],
            "legal_actions": by_name(legal(crowd)),
            "privileged": {"state": whole.astype(jnp.float32)},
            "metrics": {
                "caught": 1 - alive[agents:].mean(dtype=jnp.float32),
                "pursuers": alive[:agents].sum(dtype=jnp.float32),
            },
        }
        return by_name(see(crowd)), more

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        place_key, count_key = jax.random.split(key)
        cells = jax.random.permutation(place_key, size * size)[:count]
        most = jnp.where(params.most > 0, params.most, agents)
        drawn = jax.random.randint(count_key, (), 2, most + 1)
        number = jnp.where(params.present > 0, params.present, drawn)
        slot = jnp.arange(count)
        crowd = crowds.gather(jnp.stack([cells // size, cells % size], -1))
        crowd = dataclasses.replace(crowd, alive=(slot < number) | (slot >= agents))
        state = State(crowd)
        seen, more = channels(state)
        return state, timesteps.first(seen, **more)

    def flee(key: Key, crowd: Crowd, params: Params) -> Array:
        """Return the steps of the evaders, int32 [E, 2]."""
        move_key, tie_key = jax.random.split(key)
        goal = crowd.place[agents:, None] + STEPS  # [E, 5, 2]
        apart = distances(goal.reshape(-1, 2), crowd.place[:agents])
        apart = jnp.where(crowd.alive[:agents], apart, far).min(-1).reshape(evaders, -1)
        taken = (distances(goal.reshape(-1, 2), crowd.place) == 0) & crowd.alive
        taken = taken.any(-1).reshape(evaders, -1) & jnp.asarray(STEPS != 0).any(-1)
        worth = apart + jax.random.uniform(tie_key, apart.shape)
        best = jnp.where(inside(goal) & ~taken, worth, -1.0).argmax(-1)
        moves = jax.random.bernoulli(move_key, params.nimble, (evaders,))
        return jnp.asarray(STEPS)[jnp.where(moves, best, 0)]

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        crowd = state.crowd
        chosen = jnp.stack([action[n] for n in names])
        allowed = jnp.take_along_axis(legal(crowd), chosen[:, None], 1)[:, 0]
        push = jnp.asarray(STEPS)[jnp.where(allowed, chosen, 0)]
        crowd = crowds.move(crowd, jnp.concatenate([push, flee(key, crowd, params)]), wall)
        there = crowd.alive[:agents]
        near = crowds.beside(crowd.place[agents:], crowd.place[:agents]) & there  # [E, N]
        needed = jnp.minimum(params.needed, there.sum())
        caught = crowd.alive[agents:] & (near.sum(-1) >= needed)
        alive = crowd.alive.at[agents:].set(crowd.alive[agents:] & ~caught)
        state = State(dataclasses.replace(crowd, alive=alive))
        seen, more = channels(state)
        return state, timesteps.following(seen, caught.mean(), ~alive[agents:].any(), **more)

    def expert(state: State, params: Params) -> dict:
        del params
        crowd = state.crowd
        there, place = crowd.alive[:agents], crowd.place
        apart = distances(place[agents:], place[:agents])  # [E, N]
        sums = jnp.where(crowd.alive[agents:], jnp.where(there, apart, 0).sum(-1), far * agents)
        aim = place[agents + sums.argmin()]
        goal = place[:agents, None] + STEPS  # [N, 5, 2]
        left = jnp.abs(goal - aim).sum(-1)
        same = (distances(goal.reshape(-1, 2), place) == 0).reshape(agents, -1, count)
        others = crowd.alive & (jnp.arange(count) != jnp.arange(agents)[:, None])
        taken = (same & others[:, None]).any(-1)
        cost = left + jnp.where(taken | ~legal(crowd), far, 0)
        moves, claimed = {}, []
        for i, agent in enumerate(names):  # nobody wants the cell that another one goes to
            clash = [there[j] & (goal[i] == cell).all(-1) for j, cell in enumerate(claimed)]
            dear = jnp.stack(clash).any(0) if clash else jnp.zeros(len(STEPS), bool)
            move = (cost[i] + jnp.where(dear, far, 0)).argmin().astype(jnp.int32)
            moves[agent] = move
            claimed.append(goal[i, move])
        return moves

    def render(state: State, params: Params) -> np.ndarray:
        del params
        ground = np.full((size, size, 3), drawing.PAPER, np.uint8)
        colors = [drawing.BLUE] * agents + [drawing.GREEN] * evaders
        return crowds.draw(ground, state.crowd, colors)[0].frame()

    box: Space = Box(-1.0, 1.0, (3 * count,))
    if listed:
        box = {"own": Box(-1.0, 1.0, (3 + 3 * evaders,)), "others": Box(-1.0, 1.0, (agents - 1, 3))}
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space=dict.fromkeys(names, box),
        action_space=dict.fromkeys(names, Discrete(len(STEPS))),
        render=render,
        expert=jax.jit(expert, inline=True),
        scores={"caught": "caught"},
        agents=names,
    )
    return time_limit(environment, MAX_STEPS)
