"""Collect trash as a team: small pieces are carried to the bin, big ones must be compressed first.

A field of `size` x `size` cells with one bin, and pieces of trash in other cells, `big` of them big
and the rest small. Agents carry up to `capacity` pieces. Actions: 0 nothing, 1 north, 2 south, 3
west, 4 east, 5 pick up the small piece in one's cell, 6 compress the big piece in one's cell, which
then is a small one, 7 put all that one carries into the bin, from its cell or one beside it. Moves
follow the rule of `grids.crowd`; trash and bin are in nobody's way. Illegal are steps off the
field, picking up without a small piece or with full hands, compressing without a big piece, and
putting with empty hands or away from the bin; they do nothing.

Reward, which all share: the share of all trash that came into the bin. Terminates when all of it is
there; time limit 50 steps. Metric `delivered`: the share of the trash that is in the bin.

Observation: of each agent, float32 [5 + 3 (agents - 1) + 4 pieces]: its place and the bin's from
there (in field sizes), how full its hands are, then place and hands of each other agent, and place,
whether it is small and whether it is big, of each piece; zeros for a piece that is carried or in
the bin. Privileged: `state`, all observations; and for hierarchical agents two bool [agents, 3],
`reached` (whether an agent picked up, compressed or put in this step) and `possible` (whether there
is anything for it to pick up, compress or put; all, where there is nothing); an agent may see
its own row of these. Expert: goes to the nearest piece that nobody before it goes to, and to the
bin with full hands or when no piece is left.

After the environment of Xu et al. (2024), "Subgoal-based hierarchical reinforcement learning for
multi-agent collaboration", arXiv:2408.11416, by its description: three agents with a capacity of 3
and the same tasks. Their code for it is not published; their agents turn and walk forward and see a
part of the field. Sizes, rewards and observations are ours.
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
from jaxrl.envs.grids import paths
from jaxrl.envs.grids.crowd import Crowd
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

MAX_STEPS = 50
PICK, SPLIT, PUT = 5, 6, 7
GONE, SMALL, BIG = 0, 1, 2
SUBGOALS = ("pick", "split", "put")
# Steps of the actions: nothing, north, south, west, east, pick, split, put.
STEPS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1], [0, 0], [0, 0], [0, 0]], np.int32)

_OF_COMPASS = np.array([4, 2, 3, 1], np.int32)  # actions of east, south, west, north


@struct
class Params:
    """Parameters of the trash grid."""

    capacity: int = 3  # number of pieces that an agent can carry


@struct
class State:
    crowd: Crowd
    load: Array  # int32 [N], pieces that each agent carries
    trash: Array  # int32 [M, 2], places
    kind: Array  # int32 [M]: GONE, SMALL or BIG
    bin: Array  # int32 [2]
    delivered: Array  # int32, pieces in the bin


@functools.cache
def trash_grid(size: int = 6, agents: int = 2, pieces: int = 4, big: int = 2) -> Environment:
    """A field of `size` x `size` cells, at least 4; at least 2 `agents`, 1 of `pieces`, of which
    `big` are big."""
    name = "trash_grid"
    options = (("size", size, 4), ("agents", agents, 2), ("pieces", pieces, 1), ("big", big, 0))
    for option, value, least in options:
        at_least(name, option, value, least)
    at_least(name, "pieces", pieces, big)
    names = tuple(f"agent_{i}" for i in range(agents))
    wall = np.zeros((size, size), bool)

    def here(state: State, kind: int) -> Array:
        """Return which pieces of a kind are in the agents' cells, bool [N, M]."""
        same = (state.crowd.place[:, None] == state.trash).all(-1)
        return same & (state.kind == kind)

    def at_bin(state: State) -> Array:
        return jnp.abs(state.crowd.place - state.bin).sum(-1) <= 1

    def legal(state: State, params: Params) -> Array:
        """Return the legal actions of each agent, bool [N, 8]."""
        target = state.crowd.place[:, None] + jnp.asarray(STEPS[:PICK])
        moves = ((target >= 0) & (target < size)).all(-1)
        tasks = [
            here(state, SMALL).any(1) & (state.load < params.capacity),
            here(state, BIG).any(1),
            at_bin(state) & (state.load > 0),
        ]
        return jnp.concatenate([moves, jnp.stack(tasks, 1)], 1)

    def possible(state: State, params: Params) -> Array:
        """Return which subgoals each agent could set itself, bool [N, 3]."""
        there = [
            (state.kind == SMALL).any() & (state.load < params.capacity),
            jnp.broadcast_to((state.kind == BIG).any(), (agents,)),
            state.load > 0,
        ]
        known = jnp.stack(there, 1)
        return known | ~known.any(1, keepdims=True)

    def see(state: State, params: Params) -> Array:
        """Return the observations of all agents, [N, D]."""
        place, full = state.crowd.place, state.load / params.capacity
        kinds = jnp.stack([state.kind == SMALL, state.kind == BIG], 1)

        def view(i: int) -> Array:
            others = np.array([j for j in range(agents) if j != i])
            near = jnp.concatenate([(place[others] - place[i]) / size, full[others, None]], 1)
            trash = jnp.where(state.kind[:, None] == GONE, 0, state.trash - place[i]) / size
            own = [place[i] / size, (state.bin - place[i]) / size, full[i : i + 1]]
            rest = [near.reshape(-1), jnp.concatenate([trash, kinds], 1).reshape(-1)]
            return jnp.concatenate([*own, *rest]).astype(jnp.float32)

        return jnp.stack([view(i) for i in range(agents)])

    def channels(state: State, params: Params, reached: Array) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        by_name = lambda x: {n: x[i] for i, n in enumerate(names)}
        seen = see(state, params)
        events = {"reached": reached, "possible": possible(state, params)}
        more = {
            "legal_actions": by_name(legal(state, params)),
            "privileged": {"state": seen.reshape(-1), **events},
            "metrics": {"delivered": state.delivered.astype(jnp.float32) / pieces},
        }
        return by_name(seen), more

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        cells = jax.random.permutation(key, size * size)[: agents + pieces + 1]
        places = jnp.stack([cells // size, cells % size], 1).astype(jnp.int32)
        kind = jnp.where(np.arange(pieces) < big, BIG, SMALL).astype(jnp.int32)
        none = jnp.zeros(agents, jnp.int32)
        crowd = crowds.gather(places[:agents])
        state = State(crowd, none, places[agents:-1], kind, places[-1], jnp.zeros((), jnp.int32))
        seen, more = channels(state, params, jnp.zeros((agents, len(SUBGOALS)), bool))
        return state, timesteps.first(seen, **more)

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        del key
        chosen = jnp.stack([action[n] for n in names])
        allowed = jnp.take_along_axis(legal(state, params), chosen[:, None], 1)[:, 0]
        chosen = jnp.where(allowed, chosen, 0)
        doing = [chosen == task for task in (PICK, SPLIT, PUT)]
        # Agents are in cells of their own, and a cell has one piece at most.
        picked = (doing[0][:, None] & here(state, SMALL)).any(0)
        split = (doing[1][:, None] & here(state, BIG)).any(0)
        kind = jnp.where(picked, GONE, jnp.where(split, SMALL, state.kind))
        put = jnp.where(doing[2], state.load, 0)
        state = State(
            crowds.move(state.crowd, jnp.asarray(STEPS)[chosen], wall),
            state.load + doing[0] - put,
            state.trash,
            kind,
            state.bin,
            state.delivered + put.sum(),
        )
        seen, more = channels(state, params, jnp.stack(doing, 1))
        done = state.delivered == pieces
        return state, timesteps.following(seen, put.sum() / pieces, done, **more)

    def expert(state: State, params: Params) -> dict:
        place, can = state.crowd.place, legal(state, params)
        occupied, free, moves = crowds.mark(place, wall.shape), state.kind != GONE, {}
        claimed = jnp.zeros(wall.shape, bool)
        for i, agent in enumerate(names):
            far = jnp.where(free, jnp.abs(state.trash - place[i]).sum(-1), 4 * size)
            aim = far.argmin()
            hauls = (state.load[i] > 0) & (~free.any() | (state.load[i] >= params.capacity))
            target = jnp.where(hauls, state.bin, state.trash[aim])
            target = jnp.where(hauls | free.any(), target, place[i])
            free &= hauls | (np.arange(pieces) != aim)
            # Cells of others are dear, so that a path around them is taken where there is one.
            mine = crowds.mark(place[i : i + 1], wall.shape)
            cost = np.int16(1) + jnp.where(occupied & ~mine, np.int16(size), np.int16(0))
            cost = jnp.broadcast_to(cost, (4, size, size))
            distance = paths.by_compass(cost, crowds.mark(target[None], wall.shape), 3 * size)
            way = paths.compass_action(cost, distance, place[i, 0], place[i, 1])
            walk = jnp.where((target == place[i]).all(), 0, jnp.asarray(_OF_COMPASS)[way])
            ahead = place[i] + jnp.asarray(STEPS)[walk]
            waits = claimed[ahead[0], ahead[1]]
            claimed |= crowds.mark(jnp.where(waits, place[i], ahead)[None], wall.shape)
            walk = jnp.where(waits, 0, walk)
            task = jnp.where(can[i, SPLIT], SPLIT, jnp.where(can[i, PICK], PICK, walk))
            moves[agent] = jnp.where(hauls & can[i, PUT], PUT, task).astype(jnp.int32)
        return moves

    def render(state: State, params: Params) -> np.ndarray:
        del params
        ground = np.full((size, size, 3), drawing.PAPER, np.uint8)
        row, column = (int(x) for x in state.bin)
        ground[row, column] = drawing.GREEN
        picture, places = crowds.draw(ground, state.crowd, [drawing.BLUE] * agents)
        for (row, column), kind in zip(np.asarray(state.trash), state.kind, strict=True):
            if int(kind):
                radius = 0.3 if int(kind) == BIG else 0.15
                picture.disc(row, column, 0.5, 0.5, radius, drawing.ORANGE)
        for (row, column), load in zip(places, state.load, strict=True):
            for i in range(int(load)):
                picture.disc(row, column, 0.3 + 0.2 * i, 0.2, 0.08, drawing.ORANGE)
        return picture.frame()

    length = 5 + 3 * (agents - 1) + 4 * pieces
    environment = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space=dict.fromkeys(names, Box(-1.0, 1.0, (length,))),
        action_space=dict.fromkeys(names, Discrete(len(STEPS))),
        render=render,
        expert=jax.jit(expert, inline=True),
        scores={"delivered": "delivered"},
        agents=names,
    )
    return time_limit(environment, MAX_STEPS)
