"""Manual quest: two agents gather goals and avoid enemies, and only a manual tells which is which.

A field of `size` x `size` cells with four entities in distinct random cells, each of a kind of its
own, one of `KINDS`: two are goals and two are enemies, which kinds are what is drawn anew in each
episode. A manual of four lines, in random order, says so: each line is the name of a kind and its
role, as tokens of one vocabulary. Agents act at the same time: 0 nothing, 1 north, 2 south, 3 west,
4 east; steps off the field are illegal, and moves follow the rule of `grids.crowd`. An agent that
steps to a goal gathers it. Reward, which both share: 1/2 for each goal, and -1 when an agent steps
to an enemy, which ends the episode, as the second goal does; time limit 2 * size steps, which is
seldom enough for one agent to gather both. Metric `won`: whether both goals were gathered.

Observation of each agent, a dict: `entities` float32 [4, 11], for each entity its kind, one-hot,
rows and columns to it, rows and columns to it from the other agent (in units of the field's size),
and whether it is there (zeros if not); `agents` float32 [4], one's own row and column and the rows
and columns to the other; `manual` int32 [8], tokens. Privileged: `state`, float32, all of agent
0's observation with the manual one-hot, and each entity's role.

`pairings="train"` draws episodes in which kinds 0 and 1 are never goals and kinds 2 and 3 never
enemies, `"held_out"` those in which at least one of them is, and `"all"` both. Agents that know
kinds instead of reading do well in the first and badly in the second. Expert: knows roles; the
agents go to the goals that make the longer of their two ways shorter, by paths past enemies.

After the games of Ding et al. (2022), "Entity divider with language grounding in multi-agent
reinforcement learning", arXiv:2210.13942, whose entities move and whose manuals are in English.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids import paths
from jaxrl.envs.grids.crowd import Crowd
from jaxrl.envs.options import at_least, one_of
from jaxrl.envs.wrappers.time_limit import time_limit

AGENTS = 2
KINDS = 6
ENTITIES = 4
GOALS = 2
ENEMY, GOAL = 0, 1
TOKENS = KINDS + 2  # kinds, then the words for enemy and goal
PAIRINGS = ("train", "held_out", "all")
# Steps of the actions: nothing, north, south, west, east.
STEPS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)
_OF_COMPASS = np.array([4, 2, 3, 1], np.int32)  # actions of east, south, west, north


@struct
class State:
    crowd: Crowd
    entity: Array  # int32 [E, 2]
    kind: Array  # int32 [E]
    role: Array  # int32 [E]
    there: Array  # bool [E]
    line: Array  # int32 [E], the entity that each line of the manual is about


def castings(pairings: str) -> np.ndarray:
    """Return all pairs of the kinds that are goals and those that are enemies: int32 [n, 4], goals
    first."""
    every = [
        (a, b, c, d)
        for a in range(KINDS) for b in range(a + 1, KINDS)
        for c in range(KINDS) for d in range(c + 1, KINDS)
        if not {a, b} & {c, d}
    ]  # fmt: skip
    usual = [not {a, b} & {0, 1} and not {c, d} & {2, 3} for a, b, c, d in every]
    wanted = {"train": usual, "held_out": [not u for u in usual], "all": [True] * len(usual)}
    return np.array([c for c, u in zip(every, wanted[pairings], strict=True) if u], np.int32)


@functools.cache
def manual_quest(size: int = 6, pairings: str = "train") -> Environment:
    """A field of `size` x `size` cells, at least 4. `pairings`: "train", "held_out" or "all"."""
    name = "manual_quest"
    at_least(name, "size", size, 4)
    one_of(name, "pairings", pairings, PAIRINGS)
    names = tuple(f"agent_{i}" for i in range(AGENTS))
    shape, wall, cast = (size, size), np.zeros((size, size), bool), castings(pairings)

    def legal(state: State) -> Array:
        """Return the legal actions of each agent, bool [2, 5]."""
        goal = state.crowd.place[:, None] + jnp.asarray(STEPS)
        return ((goal >= 0) & (goal < size)).all(-1)

    def channels(state: State) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        place, kind = state.crowd.place, jax.nn.one_hot(state.kind, KINDS)
        way = (state.entity - place[:, None]) / size  # [2, E, 2]
        there = state.there[:, None].astype(jnp.float32)
        manual = jnp.stack([state.kind, KINDS + state.role], 1)[state.line]
        manual = manual.reshape(-1).astype(jnp.int32)
        seen = {}
        for i, agent in enumerate(names):
            told = jnp.concatenate([kind, way[i], way[1 - i], there], 1)
            own = jnp.append(place[i], place[1 - i] - place[i]) / size
            seen[agent] = {
                "agents": own.astype(jnp.float32),
                "entities": jnp.where(state.there[:, None], told, 0.0),
                "manual": manual,
            }
        first = seen[names[0]]
        words = jax.nn.one_hot(manual, TOKENS).reshape(-1)
        whole = [first["agents"], first["entities"].reshape(-1), words]
        whole.append(jnp.where(state.there, 2.0 * state.role - 1, 0.0))
        may, gathered = legal(state), ~(state.there & (state.role == GOAL)).any()
        more = {
            "legal_actions": {n: may[i] for i, n in enumerate(names)},
            "privileged": {"state": jnp.concatenate(whole)},
            "metrics": {"won": gathered.astype(jnp.float32)},
        }
        return seen, more

    def reset(key: Key, params: tuple) -> tuple[State, TimeStep]:
        del params
        cast_key, cell_key, order_key, line_key = jax.random.split(key, 4)
        kind = jnp.asarray(cast)[jax.random.randint(cast_key, (), 0, len(cast))]
        # Numbers of the greatest of random numbers: distinct ones, without a sort.
        distinct = lambda key, n, k: jax.lax.top_k(jax.random.uniform(key, (n,)), k)[1]
        cell = distinct(cell_key, size**2, ENTITIES + AGENTS)
        place = jnp.stack([cell // size, cell % size], 1)
        order = distinct(order_key, ENTITIES, ENTITIES)
        role = jnp.where(np.arange(ENTITIES) < GOALS, GOAL, ENEMY)
        state = State(
            crowds.gather(place[ENTITIES:]),
            place[:ENTITIES],
            kind[order],
            role[order],
            jnp.ones(ENTITIES, bool),
            distinct(line_key, ENTITIES, ENTITIES),
        )
        seen, more = channels(state)
        return state, timesteps.first(seen, **more)

    def step(key: Key, state: State, action: dict, params: tuple) -> tuple[State, TimeStep]:
        del key, params
        chosen = jnp.stack([action[n] for n in names])
        crowd = crowds.move(state.crowd, jnp.asarray(STEPS)[chosen], wall)
        met = (crowd.place[:, None] == state.entity).all(-1).any(0) & state.there
        caught = (met & (state.role == ENEMY)).any()
        gathered = (met & (state.role == GOAL)).sum()
        state = State(crowd, state.entity, state.kind, state.role, state.there & ~met, state.line)
        seen, more = channels(state)
        won = more["metrics"]["won"] > 0
        reward = gathered / GOALS - caught
        return state, timesteps.following(seen, reward, caught | won, **more)

    def expert(state: State, params: tuple) -> dict:
        del params
        enemy = crowds.mark(state.entity, shape, state.there & (state.role == ENEMY))
        enter = jnp.broadcast_to(jnp.where(enemy, paths.FAR, np.int16(1)), (4, size, size))
        wanted = state.there & (state.role == GOAL)

        def way(goal: Array) -> Array:
            return paths.by_compass(enter, crowds.mark(goal[None], shape))

        field = jax.vmap(way)(state.entity)  # [E, H, W]
        place = state.crowd.place
        length = field[:, place[:, 0], place[:, 1]].astype(jnp.int32)  # [E, 2]
        length = jnp.where(wanted[:, None], length, 4 * int(paths.FAR))
        both = jnp.maximum(length[:, None, 0], length[None, :, 1])
        both = both + jnp.where(jnp.eye(ENTITIES, dtype=bool) & (wanted.sum() > 1), 10**6, 0)
        best = both.argmin()
        aims, moves = (best // ENTITIES, best % ENTITIES), {}
        for i, agent in enumerate(names):
            walk = paths.compass_action(enter, field[aims[i]], place[i, 0], place[i, 1])
            reachable = length[aims[i], i] < paths.FAR
            moves[agent] = jnp.where(reachable, jnp.asarray(_OF_COMPASS)[walk], 0)
        return moves

    def render(state: State, params: tuple) -> np.ndarray:
        """Draw goals green and enemies red, each with as many dots as its kind's number."""
        del params
        ground = np.full((*shape, 3), drawing.PAPER, np.uint8)
        picture, _ = crowds.draw(ground, state.crowd, [drawing.BLUE, drawing.ORANGE])
        for i, (row, column) in enumerate(np.asarray(state.entity)):
            if bool(state.there[i]):
                color = drawing.GREEN if int(state.role[i]) == GOAL else drawing.RED
                picture.box(row, column, 0.1, 0.1, 0.9, 0.9, color)
                for j in range(int(state.kind[i])):
                    picture.disc(row, column, 0.2 + 0.12 * j, 0.5, 0.05, drawing.PAPER)
        return picture.frame()

    seen = {
        "agents": Box(-1.0, 1.0, (4,)),
        "entities": Box(-1.0, 1.0, (ENTITIES, KINDS + 5)),
        "manual": MultiDiscrete((TOKENS,) * 2 * ENTITIES),
    }
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=(),
        observation_space=dict.fromkeys(names, seen),
        action_space=dict.fromkeys(names, Discrete(len(STEPS))),
        render=render,
        expert=jax.jit(expert, inline=True),
        scores={"won": "won"},
        agents=names,
    )
    return time_limit(environment, 2 * size)
