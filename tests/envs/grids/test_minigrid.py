"""Environments with MiniGrid's rules against the `minigrid` package, transition by transition."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.envs.grids import cells, moves, view

pytest.importorskip("minigrid", reason="these tests compare with the published package")

from minigrid.core.constants import COLOR_TO_IDX, IDX_TO_COLOR
from minigrid.core.grid import Grid
from minigrid.core.world_object import (
    Ball,
    Box,
    Door,
    Floor,
    Goal,
    Key,
    Lava,
    Wall,
    WorldObj,
)
from minigrid.envs.crossing import CrossingEnv
from minigrid.envs.doorkey import DoorKeyEnv
from minigrid.envs.empty import EmptyEnv
from minigrid.envs.keycorridor import KeyCorridorEnv
from minigrid.envs.lavagap import LavaGapEnv
from minigrid.envs.memory import MemoryEnv
from minigrid.envs.multiroom import MultiRoomEnv

LEVELS = 12  # played side by side in each environment
STEPS = 40
DRAWN = 1500  # our levels whose statistics are compared
THEIRS = 250

ENVIRONMENTS = {
    "empty": ({"size": 6, "random_start": True}, lambda: EmptyEnv(6, agent_start_pos=None)),
    "door_key": ({"size": 6}, lambda: DoorKeyEnv(6)),
    "multi_room": (
        {"rooms": 2, "max_room_size": 5, "size": 12},
        lambda: MultiRoomEnv(2, 2, 5, width=12, height=12),
    ),
    "key_corridor": ({"room_size": 4, "rows": 2}, lambda: KeyCorridorEnv(2, room_size=4)),
    "memory": ({"size": 9, "random_length": True}, lambda: MemoryEnv(9, random_length=True)),
    "lava_crossing": ({"crossings": 3}, lambda: CrossingEnv(9, num_crossings=3)),
    "lava_gap": ({"size": 6}, lambda: LavaGapEnv(6)),
}
_KINDS = {
    cells.WALL_KIND: lambda color: Wall(color),
    cells.FLOOR: lambda color: Floor(color),
    cells.DOOR: lambda color: Door(color, is_open=True),
    cells.CLOSED: lambda color: Door(color),
    cells.LOCKED: lambda color: Door(color, is_locked=True),
    cells.KEY: lambda color: Key(color),
    cells.BALL: lambda color: Ball(color),
    cells.BOX: lambda color: Box(color),
    cells.GOAL_KIND: lambda color: Goal(),
    cells.LAVA: lambda color: Lava(),
}


def _object(code: int) -> WorldObj | None:
    """Return MiniGrid's object for one of our codes."""
    kind = code & 15
    return None if kind == cells.EMPTY_KIND else _KINDS[kind](IDX_TO_COLOR[code >> 4 & 7])


def _code(thing: WorldObj | None) -> int:
    """Return our code for one of MiniGrid's objects."""
    if thing is None:
        return int(cells.EMPTY)
    kind, color, state = thing.encode()
    kind = {(4, 1): cells.CLOSED, (4, 2): cells.LOCKED}.get((kind, state), kind)
    return int(cells.code(kind, 0)) | color << 4


_code_of = functools.cache(lambda encoded: _code(WorldObj.decode(*encoded)))


def _codes(grid: Grid) -> np.ndarray:
    things = [(1, 0, 0) if t is None else tuple(map(int, t.encode())) for t in grid.grid]
    return np.array([_code_of(t) for t in things], np.uint8).reshape(grid.height, grid.width)


def _place(environment: Any, grid: np.ndarray, row: int, column: int, heading: int) -> None:
    """Put MiniGrid's `environment` in our state."""
    environment.grid = Grid(grid.shape[1], grid.shape[0])
    environment.grid.grid = [_object(int(code)) for code in grid.reshape(-1)]
    environment.agent_pos, environment.agent_dir = (int(column), int(row)), int(heading)
    environment.carrying, environment.step_count = None, 0


@functools.cache
def _ours(name: str) -> Any:
    """Return the environment, a jitted reset of many, and a jitted rollout that follows the expert
    half of the time."""
    env: Any = envs.make(name, **ENVIRONMENTS[name][0])

    def roll(keys, states):
        def body(state, key):
            a, b, c = jax.random.split(key, 3)
            wild = jax.random.randint(a, (LEVELS,), 0, 7)
            wise = jax.vmap(env.expert, in_axes=(0, None))(state, env.params)
            action = jnp.where(jax.random.bernoulli(b, 0.75, (LEVELS,)), wise, wild)
            state, timestep = jax.vmap(env.step, in_axes=(None, 0, 0, None))(
                c, state, action, env.params
            )
            return state, (action, timestep)

        return jax.lax.scan(body, states, keys)[1]

    reset = jax.jit(lambda keys: jax.vmap(env.reset, in_axes=(0, None))(keys, env.params))
    return env, reset, jax.jit(roll)


@functools.cache
def _levels(name: str) -> Any:
    """Return many first states (inside the clock's) and time steps, on the host; two tests share
    the program of the resets. The room of `empty`, which is not part of its state, is
    MiniGrid's."""
    states, first = jax.device_get(_ours(name)[1](jax.random.split(random.key(0), DRAWN)))
    inner = states.inner
    if name == "empty":
        environment = ENVIRONMENTS[name][1]()
        environment.reset(seed=0)
        room = _codes(environment.grid)
        inner = dataclasses.replace(inner, grid=np.broadcast_to(room, (DRAWN, *room.shape)))
    return states, inner, first


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_transition_is_minigrids(name):
    states, inner, first = jax.tree.map(lambda x: x[:LEVELS], _levels(name))
    _, _, roll = _ours(name)
    actions, ours = jax.device_get(roll(jax.random.split(random.key(1), STEPS), states))
    ended = handled = 0
    for level in range(LEVELS):
        environment = ENVIRONMENTS[name][1]()
        environment.reset(seed=0)
        begin = jax.tree.map(lambda x, i=level: x[i], inner)
        _place(environment, begin.grid, begin.row, begin.column, begin.heading)
        if name == "memory":
            column, side = (int(x) for x in begin.extra)
            middle = environment.height // 2
            environment.success_pos, environment.failure_pos = (
                (column, middle + side),
                (column, middle - side),
            )
        np.testing.assert_array_equal(first.observation[level], environment.gen_obs()["image"])
        for t in range(STEPS):
            if name == "key_corridor":  # MiniGrid compares objects by identity there
                ball = [
                    x for x in [*environment.grid.grid, environment.carrying] if isinstance(x, Ball)
                ]
                environment.obj = ball[0]
            seen, reward, terminated, *_ = environment.step(int(actions[t, level]))
            np.testing.assert_array_equal(
                ours.observation[t, level], seen["image"], str((t, level))
            )
            assert ours.reward[t, level] == pytest.approx(reward, abs=1e-6)
            assert ours.terminated[t, level] == terminated
            handled += environment.carrying is not None
            if terminated:
                ended += 1
                break
    assert ended > 2
    assert handled > 0 or name not in ("door_key", "key_corridor")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_levels_are_distributed_as_minigrids(name):
    """Compare how often each kind is in each cell, the agent and its headings, and pairs of
    kinds."""
    mine = _levels(name)[1]
    environment = ENVIRONMENTS[name][1]()
    grids, agents, headings = [], [], []
    for seed in range(THEIRS):
        environment.reset(seed=seed)
        grids.append(_codes(environment.grid))
        agents.append(environment.agent_pos[1] * environment.width + environment.agent_pos[0])
        headings.append(environment.agent_dir)
    grids = np.stack(grids).reshape(THEIRS, -1)
    ours = mine.grid.reshape(DRAWN, -1)
    columns = []  # of statistics, ours and theirs
    for kind in np.unique(np.concatenate([grids, ours]) & 15):
        columns.append((ours & 15 == kind, grids & 15 == kind))
        of_kind = [(x & 15 == kind).sum(1, keepdims=True) for x in (ours, grids)]
        columns += [tuple(x == n for x in of_kind) for n in range(1, 40)]
    for color in range(cells.COLORS):
        columns.append(tuple((x >> 4 & 7 == color).sum(1, keepdims=True) for x in (ours, grids)))
    place = mine.row * mine.grid.shape[2] + mine.column
    everywhere = np.arange(ours.shape[1])
    columns.append((place[:, None] == everywhere, np.array(agents)[:, None] == everywhere))
    columns.append(
        (mine.heading[:, None] == np.arange(4), np.array(headings)[:, None] == np.arange(4))
    )
    a, b = (np.concatenate(x, 1).astype(float) for x in zip(*columns, strict=True))
    both = np.concatenate([a, b])
    deviation = both.std(0) * np.sqrt(1 / DRAWN + 1 / THEIRS)
    constant = both.std(0) == 0
    assert np.all(a[:, constant].mean(0) == b[:, constant].mean(0))
    z = (a.mean(0) - b.mean(0))[~constant] / deviation[~constant]
    rare = both[:, ~constant].sum(0) < 8  # too few for the normal approximation
    assert np.abs(z[~rare]).max(initial=0.0) < 5.0


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, 1), out_axes=1)
def _clutter_roll(state, actions):
    def body(state, action):
        state, _ = moves.act(state, action)
        seen = view.ahead_of(state.grid, state.row, state.column, state.heading, state.carrying)
        return state, (seen, state)

    return jax.lax.scan(body, state, actions)[1]


@pytest.mark.slow
def test_any_grid_is_observed_and_handled_as_in_minigrid():
    """Compare in random clutter of every object and color, with random actions, including hidden
    parts."""
    rng = np.random.default_rng(0)
    n, size, steps = 32, 11, 40
    kinds = np.array([1, 1, 1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 7, 8, 9, 11, 12])
    grid = rng.choice(kinds, (n, size, size)).astype(np.uint8)
    colors = rng.integers(0, 6, grid.shape)
    fixed = {1: 0, 8: 1, 9: 0}  # colors that are not free
    for kind, color in fixed.items():
        colors[grid == kind] = color
    grid = (grid | colors << 4 | np.isin(grid, (2, 11, 12)) * 128).astype(np.uint8)
    border = np.ones((size, size), bool)
    border[1:-1, 1:-1] = False
    grid[:, border] = cells.WALL
    row, column = rng.integers(1, size - 1, (2, n)).astype(np.int32)
    grid[np.arange(n), row, column] = cells.EMPTY
    heading = rng.integers(0, 4, n).astype(np.int32)
    actions = rng.choice([0, 1, 2, 2, 2, 3, 3, 4, 5, 5, 6], (steps, n)).astype(np.int32)
    start = jax.vmap(moves.start)(grid, row, column, heading)
    seen, states = jax.device_get(_clutter_roll(start, actions))
    environment = EmptyEnv(size, max_steps=1000)
    environment.reset(seed=0)
    environment.see_through_walls = False
    carried = opened = 0
    for i in range(n):
        _place(environment, grid[i], row[i], column[i], heading[i])
        for t in range(steps):
            image = environment.step(int(actions[t, i]))[0]["image"]
            np.testing.assert_array_equal(seen[t, i], image, str((t, i)))
            np.testing.assert_array_equal(states.grid[t, i], _codes(environment.grid))
            assert states.carrying[t, i] == _code(environment.carrying)
            carried += environment.carrying is not None
        opened += np.any(states.grid[-1, i] != grid[i])
    assert carried > 20 and opened > 5


def test_numbers_are_minigrids():
    ours = {name: name.replace("grey", "gray").upper() for name in COLOR_TO_IDX}
    assert {name: getattr(cells, ours[name]) for name in COLOR_TO_IDX} == COLOR_TO_IDX


def test_the_whole_grid_is_what_fully_observable_shows():
    from minigrid.wrappers import FullyObsWrapper

    env = envs.make("door_key", size=6, full=True)
    state, first = jax.jit(env.reset)(jax.random.key(3), env.params)
    environment = DoorKeyEnv(6)
    environment.reset(seed=0)
    inner = jax.device_get(state.inner)
    _place(environment, inner.grid, inner.row, inner.column, inner.heading)
    theirs = FullyObsWrapper(environment).observation(environment.gen_obs())["image"]
    np.testing.assert_array_equal(first.observation, theirs.transpose(1, 0, 2))


def test_agents_may_start_in_front_of_doors_except_the_locked_one():
    """Check starts in `KeyCorridor`: MiniGrid rejects those in front of the locked door, and adds
    the other doors only afterward."""
    begin = _levels("key_corridor")[1]
    row = begin.row + (begin.heading == cells.SOUTH) - (begin.heading == cells.NORTH)
    column = begin.column + (begin.heading == cells.EAST) - (begin.heading == cells.WEST)
    front = begin.grid[np.arange(DRAWN), row, column] & 15
    assert not np.any(front == cells.LOCKED) and np.any(front == cells.CLOSED)
