"""Collect, place and make: ten achievements that build on each other, as in Crafter.

A room of `size` x `size` cells (odd, walls included). Trees stand in its meadow; the rest is stone
with coal, iron and one diamond in it. A level is a random draw of where they are, of the border
between meadow and stone, of which side the stone is on, and of the start. The agent moves by
compass and faces the last direction, also where something is in its way; `do` collects what it
faces. Trees stay; stone, coal, iron and the diamond leave a free cell. What counts as near is
within two cells, diagonals included.

    achievement            action             needs
    collect_wood           4 do               a tree
    place_table            5 place table      2 wood, a free cell in front
    make_wood_pickaxe      7 make             1 wood, a table near
    collect_stone          4 do               the wood pickaxe
    make_stone_pickaxe     8 make             1 wood, 1 stone, a table near
    collect_coal           4 do               the wood pickaxe
    place_furnace          6 place furnace    2 stone, a table near, a free cell in front
    collect_iron           4 do               the stone pickaxe
    make_iron_pickaxe      9 make             1 wood, 1 coal, 1 iron, a table and a furnace near
    collect_diamond        4 do               the iron pickaxe

Actions 0 east, 1 south, 2 west, 3 north, and those above; an action whose needs are not met does
nothing. Table, furnace and makings use up what they need, pickaxes stay, and the agent carries at
most nine of a kind. Observation: float32 [view * view * 9 + 7 + 4]: a one-hot of the kind of each
cell around the agent, walls beyond the room, row by row; what it carries (wood, stone, coal, iron,
and whether it has each pickaxe), in ninths; a one-hot of the direction that it faces. What has been
achieved is not shown. Reward: 1 for every achievement, the first time in an episode. Terminates
with the last of them; time limit `max_steps`. Metrics: `achievements`, how many so far, `success`
for all of them, and 1 or 0 for each by its name, so that an evaluation reports success rates.

No level can be impossible before the agent places anything: trees, coal, iron and the diamond stand
on every second row and column, so none of them cuts off another. Hafner (2022), "Benchmarking the
spectrum of agent capabilities", has 22 achievements, hunger and enemies; this is the part of its
tree of achievements that leads to the diamond, and numbers and levels are ours. Expert: plays one
achievement after the other.
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
import jax.random
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.grids import levels, moves, paths, pictures
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

# Kinds of cells: codes of this environment's own, except for the first two.
EMPTY, WALL, TREE, STONE, COAL, IRON, DIAMOND, TABLE, FURNACE = range(9)
KINDS = 9
# What is carried.
WOOD, ROCK, LUMP, ORE, WOOD_PICKAXE, STONE_PICKAXE, IRON_PICKAXE = range(7)
ITEMS, MOST = 7, 9
DO, PLACE_TABLE, PLACE_FURNACE, MAKE_WOOD, MAKE_STONE, MAKE_IRON = range(4, 10)
ACTIONS = 10
ACHIEVEMENTS = (
    "collect_wood",
    "place_table",
    "make_wood_pickaxe",
    "collect_stone",
    "make_stone_pickaxe",
    "collect_coal",
    "place_furnace",
    "collect_iron",
    "make_iron_pickaxe",
    "collect_diamond",
)
_NONE = np.int32(-1)
# By kind of the cell in front: the item that `do` yields and the item that it needs.
_YIELDS = np.array([_NONE, _NONE, WOOD, ROCK, LUMP, ORE, _NONE, _NONE, _NONE], np.int32)
_NEEDS = np.array(
    [_NONE, _NONE, _NONE, WOOD_PICKAXE, WOOD_PICKAXE, STONE_PICKAXE, IRON_PICKAXE, _NONE, _NONE],
    np.int32,
)
_COLLECTS = np.array([_NONE, _NONE, 0, 3, 5, 7, 9, _NONE, _NONE], np.int32)  # achievement, by kind
# By action from PLACE_TABLE on: what it uses up, its achievement, and what must be near.
_COSTS = np.array(
    [
        [2, 0, 0, 0, 0, 0, 0],
        [0, 2, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 1, 0, 0, 0],
    ],
    np.int32,
)
_CRAFTS = np.array([1, 6, 2, 4, 8], np.int32)
_AT_TABLE = np.array([False, True, True, True, True])
_AT_FURNACE = np.array([False, False, False, False, True])
_NEAR = 2  # cells


@struct
class Params:
    level: int = levels.FRESH  # number of a fixed level; -1 for new ones
    achievement_reward: float = 1.0  # reward for each achievement


@struct
class State:
    """State of a crafting level."""

    grid: Array  # uint8 [size, size]: kinds
    row: Array  # int32
    column: Array
    facing: Array  # int32: east, south, west, north
    carried: Array  # int32 [ITEMS]
    achieved: Array  # bool [10]


@functools.cache
def crafting(size: int = 11, view: int = 7, max_steps: int = 300) -> Environment:
    """The room of `size` x `size` cells, odd and at least 11, seen as `view` x `view` cells (odd)
    around the agent."""
    at_least("crafting", "size", size, 11, odd=True)
    at_least("crafting", "view", view, 3, odd=True)
    at_least("crafting", "max_steps", max_steps, 1)
    half, border = view // 2, size // 2
    rows, columns = np.mgrid[:size, :size]
    inner = (rows > 0) & (rows < size - 1) & (columns > 0) & (columns < size - 1)
    sites = inner & (rows % 2 == 0) & (columns % 2 == 0)
    left, right = sites & (columns < border), sites & (columns > border)
    meadow = inner & (columns < border)

    def generate(key: Key) -> State:
        keys = jax.random.split(key, 5)
        edge = levels.uniform(keys[0], (size, size)) < 0.5
        stony = inner & ((columns > border) | ((columns == border) & edge))
        grid = jnp.where(stony, np.uint8(STONE), np.uint8(WALL))
        grid = jnp.where(inner & ~stony, np.uint8(EMPTY), grid)
        # Half the sites of the meadow are trees; of the stone, two coal, two iron, one diamond.
        tree = _rank(keys[1], left) < max(left.sum() // 2, 1)
        ore = _rank(keys[2], right)
        grid = jnp.where(left & tree, np.uint8(TREE), grid)
        for kind, first, last in ((COAL, 0, 2), (IRON, 2, 4), (DIAMOND, 4, 5)):
            grid = jnp.where(right & (ore >= first) & (ore < last), np.uint8(kind), grid)
        start = levels.pick(keys[3], jnp.asarray(meadow & ~sites))
        row, column = start // size, start % size
        turns = levels.below(levels.uniform(keys[4]), 4)
        for turn in range(3):  # quarter turns to the right
            turned = turn < turns
            grid = jnp.where(turned, grid.T[:, ::-1], grid)
            row, column = jnp.where(turned, column, row), jnp.where(turned, size - 1 - row, column)
        return State(
            grid,
            row,
            column,
            turns,
            jnp.zeros(ITEMS, jnp.int32),
            jnp.zeros(len(ACHIEVEMENTS), bool),
        )

    def observe(state: State) -> Array:
        padded = jnp.pad(state.grid, half, constant_values=WALL)
        around = jax.lax.dynamic_slice(padded, (state.row, state.column), (view, view))
        kinds = around.reshape(-1, 1) == np.arange(KINDS, dtype=np.uint8)
        facing = state.facing == np.arange(4)
        return jnp.concatenate(
            [kinds.reshape(-1).astype(jnp.float32), state.carried / np.float32(MOST), facing]
        ).astype(jnp.float32)

    def channels(state: State) -> dict:
        each = state.achieved.astype(jnp.float32)
        names = dict(zip(ACHIEVEMENTS, each, strict=True))
        return {"metrics": {"achievements": each.sum(), "success": each.min(), **names}}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        state = generate(levels.key_of(key, params.level))
        return state, timesteps.first(observe(state), **channels(state))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        del key
        after = act(state, action)
        new = (after.achieved & ~state.achieved).sum()
        reward = params.achievement_reward * new.astype(jnp.float32)
        return after, timesteps.following(
            observe(after), reward, after.achieved.all(), **channels(after)
        )

    def render(state: State, params: Params) -> np.ndarray:
        del params
        return _draw(state)

    return time_limit(
        Environment(
            name="crafting",
            reset=reset,
            step=step,
            params=Params(),
            observation_space=Box(0, 1, (view * view * KINDS + ITEMS + 4,)),
            action_space=Discrete(ACTIONS),
            render=render,
            expert=lambda state, params: _expert(state),
            scores={"achievements": "achievements"},
        ),
        max_steps,
    )


def _rank(key: Key, mask: np.ndarray) -> Array:
    """Rank the places of `mask` in random order from 0, int32; larger numbers elsewhere."""
    draws = jnp.where(mask, levels.uniform(key, mask.shape), 2.0).reshape(-1)
    return jnp.argsort(jnp.argsort(draws)).reshape(mask.shape)


def act(state: State, action: Array) -> State:
    """Take an action, int32 from 0 to 9."""
    facing = jnp.where(action < DO, action, state.facing)
    row, column = moves.ahead(state.row, state.column, facing)
    front = moves.cell(state.grid, row, column)
    moved = (action < DO) & (front == EMPTY)
    carried, achieved, new_front = state.carried, state.achieved, front

    needed = jnp.asarray(_NEEDS)[front]
    collects = (action == DO) & (jnp.asarray(_COLLECTS)[front] >= 0)
    collects = collects & ((needed < 0) | (carried[needed] > 0))
    item = jnp.where(collects, jnp.asarray(_YIELDS)[front], _NONE)
    carried = jnp.minimum(carried + (np.arange(ITEMS) == item), MOST)
    achieved = achieved | (
        collects & (np.arange(len(ACHIEVEMENTS)) == jnp.asarray(_COLLECTS)[front])
    )
    new_front = jnp.where(collects & (front != TREE), np.uint8(EMPTY), new_front)

    recipe = jnp.clip(action - PLACE_TABLE, 0, len(_CRAFTS) - 1)
    cost = jnp.asarray(_COSTS)[recipe]
    near_table, near_furnace = is_near(state, TABLE), is_near(state, FURNACE)
    places = (action == PLACE_TABLE) | (action == PLACE_FURNACE)
    crafts = (
        (action >= PLACE_TABLE)
        & (state.carried >= cost).all()
        & (near_table | ~jnp.asarray(_AT_TABLE)[recipe])
        & (near_furnace | ~jnp.asarray(_AT_FURNACE)[recipe])
        & ((front == EMPTY) | ~places)
    )
    carried = carried - jnp.where(crafts, cost, 0)
    made = WOOD_PICKAXE + action - MAKE_WOOD
    carried = jnp.where(crafts & (np.arange(ITEMS) == made) & ~places, 1, carried)
    achieved = achieved | (crafts & (np.arange(len(ACHIEVEMENTS)) == jnp.asarray(_CRAFTS)[recipe]))
    placed = jnp.where(action == PLACE_TABLE, np.uint8(TABLE), np.uint8(FURNACE))
    new_front = jnp.where(crafts & places, placed, new_front)
    return dataclasses.replace(
        state,
        grid=moves.put(state.grid, row, column, new_front),
        row=jnp.where(moved, row, state.row),
        column=jnp.where(moved, column, state.column),
        facing=facing,
        carried=carried,
        achieved=achieved,
    )


def is_near(state: State, kind: int) -> Array:
    """Return whether a cell of this kind is within two cells of the agent."""
    return (_around(state.row, state.column, state.grid.shape) & (state.grid == kind)).any()


def _around(row: Array, column: Array, shape: tuple[int, ...]) -> Array:
    """Return the places within two cells of one, bool [H, W]."""
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    return (jnp.abs(rows - row) <= _NEAR) & (jnp.abs(columns - column) <= _NEAR)


def _spread(mask: Array) -> Array:
    """Return the places within two cells of any of `mask`, bool [H, W]."""
    wide = jnp.pad(mask, _NEAR)
    height, width = mask.shape
    shifts = range(2 * _NEAR + 1)
    parts = [wide[i : i + height, j : j + width] for i in shifts for j in shifts]
    return jnp.stack(parts).any(0)


def _expert(state: State) -> Array:
    """Return the next action of a player that goes through the achievements in order."""
    grid, carried, achieved = state.grid, state.carried, state.achieved
    table, furnace = grid == TABLE, grid == FURNACE
    near_table, near_furnace = is_near(state, TABLE), is_near(state, FURNACE)
    has = lambda item: carried[item] > 0
    # Wood for all that will be made, so that there is no way back to the trees.
    made = jnp.stack([achieved[1], has(WOOD_PICKAXE), has(STONE_PICKAXE), has(IRON_PICKAXE)])
    wood = (np.array([2, 1, 1, 1]) * ~made).sum()
    stones = (~has(STONE_PICKAXE)).astype(jnp.int32) + 2 * ~achieved[6]
    at_table, at_both = _spread(table), _spread(table) & _spread(furnace)

    # In order: whether it is due, where to go, whether that is collected there or the agent can
    # stand on it, whether the agent is there, and what is done there.
    nowhere = jnp.zeros_like(table)
    stages = [
        (carried[WOOD] < wood, grid == TREE, True, False, DO),
        (~achieved[1], nowhere, False, True, PLACE_TABLE),
        (~has(WOOD_PICKAXE), at_table, False, near_table, MAKE_WOOD),
        (carried[ROCK] < stones, grid == STONE, True, False, DO),
        (~has(STONE_PICKAXE), at_table, False, near_table, MAKE_STONE),
        (~achieved[6], at_table, False, near_table, PLACE_FURNACE),
        ((carried[LUMP] < 1) & ~has(IRON_PICKAXE), grid == COAL, True, False, DO),
        ((carried[ORE] < 1) & ~has(IRON_PICKAXE), grid == IRON, True, False, DO),
        (~has(IRON_PICKAXE), at_both, False, near_table & near_furnace, MAKE_IRON),
        (jnp.ones((), bool), grid == DIAMOND, True, False, DO),
    ]
    stage = jnp.argmax(jnp.stack([due for due, *_ in stages]))
    pick = lambda values: jnp.stack([jnp.asarray(v) for v in values])[stage]
    aim, collected = pick([s[1] for s in stages]), pick([s[2] for s in stages])
    there, final = pick([s[3] for s in stages]), pick([s[4] for s in stages])

    minable = (grid == STONE) & has(WOOD_PICKAXE)
    cost = jnp.where(grid == EMPTY, np.int16(1), jnp.where(minable, np.int16(2), paths.FAR))
    cost = jnp.where(aim & collected, np.int16(1), cost)
    enter = jnp.broadcast_to(cost, (4, *cost.shape))
    aim = aim & (collected | (cost < paths.FAR))
    way = paths.compass_action(enter, paths.by_compass(enter, aim), state.row, state.column)
    front = moves.cell(grid, *moves.ahead(state.row, state.column, way))
    go = jnp.where((front == EMPTY) | (state.facing != way), way, DO)

    # A place for the table or furnace: a free cell in front that does not lock the agent in.
    neighbors = [moves.ahead(state.row, state.column, jnp.int32(d)) for d in range(4)]
    free = jnp.stack([moves.cell(grid, *place) == EMPTY for place in neighbors])
    others = free & (np.arange(4) != state.facing)
    beyond = [moves.ahead(*place, jnp.int32(d)) for d, place in enumerate(neighbors)]
    edge = grid.shape[0] - 1
    inside = lambda place: (jnp.clip(place[0], 0, edge), jnp.clip(place[1], 0, edge))
    further = jnp.stack([moves.cell(grid, *inside(place)) == EMPTY for place in beyond])
    good = free[state.facing] & others.any()
    close = jnp.stack([moves.cell(at_table, *place) for place in neighbors])
    aside = jnp.argmax(free * (1 + further + 2 * close))  # if it can, where it remains near a table
    places = (final == PLACE_TABLE) | (final == PLACE_FURNACE)
    chosen = jnp.where(places & ~good, aside, final)
    return jnp.where(there, chosen, go).astype(jnp.int32)


_COLORS = {
    EMPTY: (214, 232, 200),
    WALL: (88, 96, 110),
    TREE: (214, 232, 200),
    STONE: (170, 174, 182),
    COAL: (170, 174, 182),
    IRON: (170, 174, 182),
    DIAMOND: (170, 174, 182),
    TABLE: (214, 232, 200),
    FURNACE: (214, 232, 200),
}
_WOOD_COLOR, _IRON_COLOR, _DIAMOND_COLOR = (142, 98, 56), (214, 170, 130), (120, 214, 226)
_ITEM_COLORS = (
    _WOOD_COLOR,
    (140, 144, 152),
    drawing.INK,
    _IRON_COLOR,
    _WOOD_COLOR,
    (140, 144, 152),
    _IRON_COLOR,
)


def _draw(state: State) -> np.ndarray:
    """Draw the room and, below it, what is carried: a square for each thing, a pickaxe's framed,
    and at the right as many discs as there are achievements."""
    grid = np.asarray(state.grid)
    size = max(480 // (len(grid) + 2), 16)
    ground = np.array([_COLORS[k] for k in range(KINDS)], np.uint8)[grid]
    strip = np.full((2, len(grid), 3), drawing.PAPER, np.uint8)
    canvas = pictures.Glyphs(drawing.tiles(np.concatenate([ground, strip]), size), size)
    for (y, x), kind in np.ndenumerate(grid):
        _object(canvas, y, x, int(kind))
    triangle = [(0.86, 0.5), (0.2, 0.84), (0.34, 0.5), (0.2, 0.16)]
    canvas.polygon(int(state.row), int(state.column), triangle, drawing.INK, int(state.facing))
    for item, count in enumerate(np.asarray(state.carried)):
        color = _ITEM_COLORS[item]
        for k in range(min(int(count), MOST)):
            left, top = 0.1 + 0.27 * (k % 3), 0.1 + 0.27 * (k // 3)
            if item >= WOOD_PICKAXE:
                canvas.box(len(grid), item, 0.46, 0.2, 0.54, 0.9, drawing.INK)
                canvas.box(len(grid), item, 0.15, 0.15, 0.85, 0.32, color)
            else:
                canvas.box(len(grid), item, left, top, left + 0.22, top + 0.22, color)
    for number, done in enumerate(np.asarray(state.achieved)):
        color = drawing.GREEN if done else drawing.SHADE
        canvas.disc(len(grid) + 1, number, 0.5, 0.5, 0.3, color)
    return canvas.frame()


def _object(canvas: pictures.Glyphs, y: int, x: int, kind: int) -> None:
    if kind == TREE:
        canvas.box(y, x, 0.42, 0.55, 0.58, 0.95, _WOOD_COLOR)
        canvas.disc(y, x, 0.5, 0.38, 0.32, drawing.GREEN)
    elif kind in (COAL, IRON, DIAMOND):
        color = {COAL: drawing.INK, IRON: _IRON_COLOR, DIAMOND: _DIAMOND_COLOR}[kind]
        for left, top in ((0.3, 0.32), (0.66, 0.44), (0.42, 0.7)):
            if kind == DIAMOND:
                corners = [(left, top - 0.17), (left + 0.15, top)]
                corners += [(left, top + 0.17), (left - 0.15, top)]
                canvas.polygon(y, x, corners, color)
            else:
                canvas.disc(y, x, left, top, 0.13, color)
    elif kind == TABLE:
        canvas.box(y, x, 0.08, 0.3, 0.92, 0.48, _WOOD_COLOR)
        for left in (0.14, 0.72):
            canvas.box(y, x, left, 0.48, left + 0.14, 0.9, _WOOD_COLOR)
    elif kind == FURNACE:
        canvas.box(y, x, 0.12, 0.12, 0.88, 0.9, drawing.STEEL)
        canvas.box(y, x, 0.28, 0.5, 0.72, 0.82, drawing.ORANGE)
