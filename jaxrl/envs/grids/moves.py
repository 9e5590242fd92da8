"""Moves of an agent through a grid and its handling of what is in front of it, as in MiniGrid."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Tree, struct
from jaxrl.envs.grids import cells

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
ACTIONS = 7


@struct
class State:
    """State of a grid and an agent with a heading and one hand."""

    grid: Array  # uint8 [H, W]: codes; () if `minigrid` was given the room of all levels
    row: Array  # int32, from the top
    column: Array
    heading: Array  # int32: east, south, west, north
    carrying: Array  # uint8: code of what the hand holds, or EMPTY
    steps: Array  # int32, taken in this episode
    extra: Tree = ()  # whatever else an environment keeps


def start(
    grid: Any,
    row: Any,
    column: Any,
    heading: Any = cells.EAST,
    carrying: Any = cells.EMPTY,
    extra: Tree = (),
) -> State:
    """Return the state at the start of an episode; numbers and NumPy arrays become arrays."""
    integer = lambda x: jnp.asarray(x, jnp.int32)
    return State(
        jnp.asarray(grid, jnp.uint8),
        integer(row),
        integer(column),
        integer(heading),
        jnp.asarray(carrying, jnp.uint8),
        jnp.zeros((), jnp.int32),
        extra,
    )


def ahead(row: Array, column: Array, heading: Array) -> tuple[Array, Array]:
    """Return the row and column one step in the direction `heading`."""
    down = (heading == cells.SOUTH).astype(jnp.int32) - (heading == cells.NORTH)
    right = (heading == cells.EAST).astype(jnp.int32) - (heading == cells.WEST)
    return row + down, column + right


def cell(grid: Array, row: Array, column: Array) -> Array:
    """Return the code at a place inside the grid."""
    return grid.reshape(-1).at[row * grid.shape[1] + column].get(mode="promise_in_bounds")


def at(shape: tuple[int, ...], row: Array, column: Array) -> Array:
    """Return a mask, bool [H, W], that is true at one place."""
    place = row * shape[1] + column
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return rows * shape[1] + columns == place


def put(grid: Array, row: Array, column: Array, code: Array | np.uint8) -> Array:
    """Return the grid with `code` at one place."""
    return jnp.where(at(grid.shape, row, column), code, grid)


def act(state: State, action: Array, objects: bool = True) -> tuple[State, Array]:
    """Take one of MiniGrid's seven actions. Returns the state, and the code of the cell that was
    entered, or UNSEEN if the agent did not move. Without `objects` the last four actions do
    nothing."""
    turn = (action == RIGHT).astype(jnp.int32) - (action == LEFT)
    row, column = ahead(state.row, state.column, state.heading)
    front = cell(state.grid, row, column)
    moved = (action == FORWARD) & cells.is_free(front)
    after = dataclasses.replace(
        state,
        row=jnp.where(moved, row, state.row),
        column=jnp.where(moved, column, state.column),
        heading=(state.heading + turn) & 3,
        steps=state.steps + 1,
    )
    entered = jnp.where(moved, front, np.uint8(cells.UNSEEN))
    if not objects:
        return after, entered
    front, carrying = _handle(front, state.carrying, action)
    return dataclasses.replace(
        after, grid=put(state.grid, row, column, front), carrying=carrying
    ), entered


def _handle(front: Array, hand: Array, action: Array) -> tuple[Array, Array]:
    """Return what is in front and in the hand after picking up, dropping or toggling."""
    kind, hand_empty = cells.kind(front), hand == cells.EMPTY
    picks = (
        (action == PICK_UP)
        & hand_empty
        & cells.is_one_of(front, (cells.KEY, cells.BALL, cells.BOX))
    )
    drops = (action == DROP) & ~hand_empty & (front == cells.EMPTY)
    toggles = action == TOGGLE
    fits = hand == (cells.code(cells.KEY) | cells.color(front) << np.uint8(4))
    opens = toggles & ((kind == cells.CLOSED) | ((kind == cells.LOCKED) & fits))
    closes = toggles & (kind == cells.DOOR)
    unpacks = toggles & (kind == cells.BOX)  # boxes are empty here
    color = cells.color(front)
    new_front = jnp.where(picks | unpacks, cells.EMPTY, front)
    new_front = jnp.where(drops, hand, new_front)
    new_front = jnp.where(opens, cells.code(cells.DOOR, color), new_front)
    new_front = jnp.where(closes, cells.code(cells.CLOSED, color), new_front)
    return new_front, jnp.where(picks, front, jnp.where(drops, cells.EMPTY, hand))


def go(grid: Array, row: Array, column: Array, direction: Array) -> tuple[Array, Array]:
    """Return row and column after a compass step; walls stop it, as do one-way doors in all
    directions but their own."""
    to_row, to_column = ahead(row, column, direction)
    code = cell(grid, to_row, to_column)
    may = is_enterable(code, direction)
    return jnp.where(may, to_row, row), jnp.where(may, to_column, column)


def is_enterable(codes: Array, direction: Array | int) -> Array:
    """Return whether cells can be entered by a step in `direction`."""
    along = (cells.kind(codes) == cells.ONE_WAY) & (cells.color(codes) == direction)
    return cells.is_free(codes) | along
