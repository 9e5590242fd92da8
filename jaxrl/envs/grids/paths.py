"""Distances in a grid by relaxation, with headings and by compass, and what follows the shortest
way. Every function does a fixed number of passes over the whole grid: no queue, no `while`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl.core.types import Array
from jaxrl.envs.grids import cells, moves

FAR = np.int16(10_000)  # no way there; sums of a few of them still fit
_STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # rows and columns, of east, south, west, north


def next_to(values: Array, direction: int, outside: np.generic | bool = FAR) -> Array:
    """At each place of `values` [H, W] the value one step further in `direction`."""
    down, right = _STEPS[direction]
    return lax.pad(
        values, np.asarray(outside, values.dtype), ((-down, down, 0), (-right, right, 0))
    )


def entering(grid: Array) -> Array:
    """int16 [4, H, W]: what a compass step into each cell costs in each direction, 1 or FAR."""
    return jnp.stack([jnp.where(moves.is_enterable(grid, d), np.int16(1), FAR) for d in range(4)])


def by_compass(enter: Array, targets: Array, passes: int | None = None) -> Array:
    """int16 [H, W]: the cost of the cheapest way from each cell to the nearest target, from FAR up
    where there is none; what it says of a wall is what it would take from there.

    enter: int16 [4, H, W], see `entering`; targets: bool [H, W]. passes: the longest way that is
    found, in steps; every cell of the grid by default.
    """
    seeds = jnp.where(targets, np.int16(0), FAR)

    def relax(_: Array, distance: Array) -> Array:
        ways = [next_to(jnp.minimum(distance + enter[d], FAR), d) for d in range(4)]
        return jnp.minimum(distance, jnp.minimum(jnp.minimum(*ways[:2]), jnp.minimum(*ways[2:])))

    return lax.fori_loop(0, targets.size if passes is None else passes, relax, seeds)


def compass_action(enter: Array, distance: Array, row: Array, column: Array) -> Array:
    """int32: the first direction that is on a cheapest way from there."""
    place = row * distance.shape[1] + column
    ways = jnp.stack([next_to(enter[d] + distance, d).reshape(-1)[place] for d in range(4)])
    return jnp.argmin(ways).astype(jnp.int32)


def by_heading(enter: Array, seeds: Array, passes: int) -> Array:
    """int16 [4, H, W]: the fewest actions from each heading and cell, turning and going forward.

    enter: int16 [H, W], what it takes to go forward into a cell (2 for a closed door); seeds:
    int16 [4, H, W], what remains to be done from there, FAR where nothing ends.
    """

    def relax(_: Array, cost: Array) -> Array:
        forward = jnp.stack([next_to(jnp.minimum(cost[h] + enter, FAR), h) for h in range(4)])
        turned = jnp.minimum(jnp.roll(cost, 1, 0), jnp.roll(cost, -1, 0)) + np.int16(1)
        return jnp.minimum(cost, jnp.minimum(forward, turned))

    return lax.fori_loop(0, passes, relax, seeds)


def facing(mask: Array) -> Array:
    """bool [4, H, W]: heading and place from which a cell of `mask` [H, W] is in front."""
    return jnp.stack([next_to(mask, h, False) for h in range(4)])


def follow(
    state: moves.State,
    passes: int,
    stand: Array | None = None,
    take: int | None = None,
    locks: bool = False,
) -> Array:
    """The next of MiniGrid's actions on a shortest way to stand on a cell of `stand` (bool [H, W])
    or to pick up an object of the kind `take`, around lava, through closed doors, and with `locks`
    by way of a key (of which there is one) and the locked door that it fits.

    Shortest in actions, planned over all stages at once, but for one case: with `take` the hand
    must be emptied on the way, and the key is dropped only where the way turns aside.
    """
    grid, kinds = state.grid, cells.kind(state.grid)
    walk = jnp.where(cells.is_free(grid) & (kinds != cells.LAVA), np.int16(1), FAR)
    walk = jnp.where(kinds == cells.CLOSED, np.int16(2), walk)
    nowhere = jnp.full((4, *grid.shape), FAR)
    aim = facing(kinds == take) if stand is None else jnp.broadcast_to(stand, nowhere.shape)
    seeds = jnp.where(aim, np.int16(stand is None), FAR)
    final = moves.PICK_UP if stand is None else moves.DONE
    if not locks:
        return _descend(state, walk, by_heading(walk, seeds, passes), seeds, final)

    locked, keys = kinds == cells.LOCKED, kinds == cells.KEY
    has_key, barred = cells.kind(state.carrying) == cells.KEY, locked.any()
    to_fetch = barred & ~has_key  # then the key lies in nobody's way: it will be in the hand
    later = jnp.where(keys & to_fetch, np.int16(1), walk)
    plans = []  # of each stage: enter, cost, seeds, action that ends it
    if stand is not None:
        through = jnp.where(locked, np.int16(2), later)
        cost = by_heading(through, seeds, passes)
        plans.append((through, cost, seeds, final))
        stage = jnp.where(to_fetch, 1, 0)
    else:
        opened = jnp.where(locked, np.int16(1), later)
        cost = by_heading(opened, seeds, passes)
        plans.append((opened, cost, seeds, final))
        # Drop the key where the next thing to do is a turn, so that it will not be in the way.
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
    """int32: the action that lowers `cost` [4, H, W], or `final` where what remains is a seed."""
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
