"""Distances in a grid by relaxation, with headings and by compass, and actions along shortest
paths. Every function does a fixed number of passes over the whole grid: no queue, no `while`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl.core.types import Array
from jaxrl.envs.grids import cells, moves

FAR = np.int16(10_000)  # no path; sums of a few of them still fit
_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # rows and columns, for east, south, west, north


def next_to(values: Array, direction: int, outside: np.generic | bool = FAR) -> Array:
    """Shift `values` [H, W], so that each place holds the value one step further in `direction`."""
    down, right = _STEPS[direction]
    return lax.pad(
        values, np.asarray(outside, values.dtype), ((-down, down, 0), (-right, right, 0))
    )


def entering(grid: Array) -> Array:
    """Return the cost of a compass step into each cell in each direction, 1 or FAR: int16 [4, H,
    W]."""
    return jnp.stack([jnp.where(moves.is_enterable(grid, d), np.int16(1), FAR) for d in range(4)])


def by_compass(enter: Array, targets: Array, passes: int | None = None) -> Array:
    """Return the cost of the cheapest path from each cell to the nearest target, int16 [H, W]: FAR
    or more if there is none; for a wall, the cost of a path that begins there.

    enter: int16 [4, H, W], see `entering`; targets: bool [H, W]. passes: length of the longest path
    that is found, in steps; the number of cells by default.
    """
    seeds = jnp.where(targets, np.int16(0), FAR)

    def relax(_: Array, distance: Array) -> Array:
        ways = [next_to(jnp.minimum(distance + enter[d], FAR), d) for d in range(4)]
        return jnp.minimum(distance, jnp.minimum(jnp.minimum(*ways[:2]), jnp.minimum(*ways[2:])))

    return lax.fori_loop(0, targets.size if passes is None else passes, relax, seeds)


def compass_action(enter: Array, distance: Array, row: Array, column: Array) -> Array:
    """Return the first direction, int32, on a cheapest path from the given cell."""
    place = row * distance.shape[1] + column
    ways = jnp.stack([next_to(enter[d] + distance, d).reshape(-1)[place] for d in range(4)])
    return jnp.argmin(ways).astype(jnp.int32)


def by_heading(enter: Array, seeds: Array, passes: int) -> Array:
    """Return the fewest actions from each heading and cell, by turns and forward steps: int16 [4,
    H, W].

    enter: int16 [H, W], the actions that it takes to go forward into a cell (2 for a closed door);
    seeds: int16 [4, H, W], the actions that remain from there, FAR where no path ends.
    """

    def relax(_: Array, cost: Array) -> Array:
        forward = jnp.stack([next_to(jnp.minimum(cost[h] + enter, FAR), h) for h in range(4)])
        turned = jnp.minimum(jnp.roll(cost, 1, 0), jnp.roll(cost, -1, 0)) + np.int16(1)
        return jnp.minimum(cost, jnp.minimum(forward, turned))

    return lax.fori_loop(0, passes, relax, seeds)


def walking(grid: Array) -> Array:
    """Return the actions that it takes to go forward into each cell, int16 [H, W]: 2 for a closed
    door, FAR for lava and what is in the way."""
    kinds = cells.kind(grid)
    walk = jnp.where(cells.is_free(grid) & (kinds != cells.LAVA), np.int16(1), FAR)
    return jnp.where(kinds == cells.CLOSED, np.int16(2), walk)


def fewest_to_face(state: moves.State, face: Array, passes: int) -> Array:
    """Return the fewest actions, int32, after which a cell of `face` (bool [H, W]) is in front of
    the agent; FAR if there is no path of at most `passes` actions."""
    seeds = jnp.where(facing(face), np.int16(0), FAR)
    cost = by_heading(walking(state.grid), seeds, passes)
    return cost[state.heading, state.row, state.column].astype(jnp.int32)


def facing(mask: Array) -> Array:
    """Return the headings and places from which a cell of `mask` [H, W] is in front: bool [4, H,
    W]."""
    return jnp.stack([next_to(mask, h, False) for h in range(4)])


def follow(
    state: moves.State,
    passes: int,
    stand: Array | None = None,
    take: int | None = None,
    locks: bool = False,
    face: Array | None = None,
) -> Array:
    """Return the next of MiniGrid's actions on a shortest path to stand on a cell of `stand` (bool
    [H, W]), to have one of `face` (bool [H, W]) in front, or to pick up an object of the kind
    `take`, around lava, through closed doors, and with `locks` by way of a key (there is one) and
    the locked door that it fits.

    Shortest in actions, planned over all stages at once, with one exception: with `take` the hand
    must be emptied on the way, and the key is dropped only where the path turns.
    """
    grid, kinds = state.grid, cells.kind(state.grid)
    walk = walking(grid)
    if face is not None:
        seeds = jnp.where(facing(face), np.int16(0), FAR)
        return _descend(state, walk, by_heading(walk, seeds, passes), seeds, moves.DONE)
    nowhere = jnp.full((4, *grid.shape), FAR)
    aim = facing(kinds == take) if stand is None else jnp.broadcast_to(stand, nowhere.shape)
    seeds = jnp.where(aim, np.int16(stand is None), FAR)
    final = moves.PICK_UP if stand is None else moves.DONE
    if not locks:
        return _descend(state, walk, by_heading(walk, seeds, passes), seeds, final)

    locked, keys = kinds == cells.LOCKED, kinds == cells.KEY
    has_key, barred = cells.kind(state.carrying) == cells.KEY, locked.any()
    to_fetch = barred & ~has_key  # then the key is not in the way: it will be in the hand
    later = jnp.where(keys & to_fetch, np.int16(1), walk)
    plans = []  # for each stage: enter, cost, seeds, action that ends it
    if stand is not None:
        through = jnp.where(locked, np.int16(2), later)
        cost = by_heading(through, seeds, passes)
        plans.append((through, cost, seeds, final))
        stage = jnp.where(to_fetch, 1, 0)
    else:
        opened = jnp.where(locked, np.int16(1), later)
        cost = by_heading(opened, seeds, passes)
        plans.append((opened, cost, seeds, final))
        # Drop the key where the next action is a turn, so that it will not be in the way.
        turn_next = jnp.minimum(jnp.roll(cost, 1, 0), jnp.roll(cost, -1, 0)) < cost
        rest = facing(grid == cells.EMPTY) & turn_next
        seeds = jnp.where(rest, cost + np.int16(1), FAR)
        cost = by_heading(opened, seeds, passes)
        plans.append((opened, cost, seeds, moves.DROP))
        seeds = jnp.where(facing(locked), cost + np.int16(1), FAR)
        cost = by_heading(later, seeds, passes)
        plans.append((later, cost, seeds, moves.TOGGLE))
        stage = jnp.where(to_fetch, 3, jnp.where(barred, 2, jnp.where(has_key, 1, 0)))
    seeds = jnp.where(facing(keys), cost + np.int16(1), FAR)
    plans.append((walk, by_heading(walk, seeds, passes), seeds, moves.PICK_UP))
    actions = jnp.stack([_descend(state, *plan) for plan in plans])
    return actions[stage]


def _descend(state: moves.State, enter: Array, cost: Array, seeds: Array, final: int) -> Array:
    """Return the action, int32, that lowers `cost` [4, H, W], or `final` if what remains is a
    seed."""
    shape = state.grid.shape
    to_row, to_column = moves.ahead(state.row, state.column, state.heading)
    here, there = state.row * shape[1] + state.column, to_row * shape[1] + to_column
    at = lambda array, heading, place: array.reshape(4, -1)[heading & 3, place].astype(jnp.int32)
    options = jnp.stack(
        [
            at(seeds, state.heading, here),
            at(cost, state.heading, there) + enter.reshape(-1)[there],
            1 + at(cost, state.heading - 1, here),
            1 + at(cost, state.heading + 1, here),
        ]
    )
    front = state.grid.reshape(-1)[there]
    shut = cells.is_one_of(front, (cells.CLOSED, cells.LOCKED))
    forward = jnp.where(shut, moves.TOGGLE, moves.FORWARD)
    actions = jnp.stack([jnp.int32(final), forward, jnp.int32(moves.LEFT), jnp.int32(moves.RIGHT)])
    return actions[jnp.argmin(options)].astype(jnp.int32)
