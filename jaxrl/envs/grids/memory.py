"""Remember the object in the first room and turn to the same one at the corridor's end: MiniGrid's
`Memory`.

Rules, observation and reward as in `jaxrl.envs.grids.minigrid`. A green key or ball lies in the
room at the left; a key and a ball lie above and below the corridor's end. The agent starts at a
random column of the middle row, facing east. Picking up does nothing. Terminates beside the
matching object (success) or the other one (reward 0); time limit 5 * size**2 steps.
`MiniGrid-MemoryS13-v0` and, by `size`, its siblings; with `random_length` the corridor's length is
random (`MiniGrid-MemoryS13Random-v0`). Expert: takes the fewest actions (it knows the match).
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs.grids import cells, levels, moves, paths
from jaxrl.envs.grids.minigrid import Params, minigrid
from jaxrl.envs.options import at_least


@functools.cache
def memory(size: int = 13, random_length: bool = False, full: bool = False) -> Environment:
    """The memory task in `size` x `size` cells (odd). `full`: observe all of it."""
    at_least("memory", "size", size, 7, odd=True)
    middle = size // 2
    room = levels.walled_room(size, size)
    for row in (middle - 2, middle + 2):
        room[row, 1:5] = cells.WALL
    for row in (middle - 1, middle + 1):
        room[row, 4] = cells.WALL
    rows, columns = levels.rows_and_columns(room.shape)

    def generate(key: Key) -> moves.State:
        draws = levels.uniform(key, (4,))
        end = 4 + levels.below(draws[0], size - 6) if random_length else jnp.int32(size - 3)
        corridor = (columns >= 5) & (columns < end) & (abs(rows - middle) == 1)
        gate = (columns == end) & (rows != middle)
        grid = jnp.where(corridor | gate | (columns == end + 2), cells.WALL, room)
        key_first, key_above = draws[1] < 0.5, draws[2] < 0.5
        things = [cells.code(kind, cells.GREEN) for kind in (cells.KEY, cells.BALL)]
        either = lambda which: jnp.where(which, things[0], things[1])
        for row, column, thing in (
            (middle - 1, 1, either(key_first)),
            (middle - 2, end + 1, either(key_above)),
            (middle + 2, end + 1, either(~key_above)),
        ):
            grid = jnp.where((rows == row) & (columns == column), thing, grid)
        side = jnp.where(key_first == key_above, -1, 1)  # success is above or below
        return moves.start(grid, middle, 1 + levels.below(draws[3], end), extra=(end + 1, side))

    def judge(
        state: moves.State, action: Array, after: moves.State, entered: Array
    ) -> tuple[Array, Array]:
        del state, action, entered
        column, side = after.extra
        off = jnp.where(after.column == column, after.row - middle, 0)
        return off == side, off == -side

    def expert(state: moves.State, params: Params) -> Array:
        del params
        column, side = state.extra
        success = (columns == column) & (rows == middle + side)
        return paths.follow(state, 2 * size + 8, stand=success)

    return minigrid(
        "memory",
        generate,
        room.shape,
        5 * size**2,
        expert,
        judge=judge,
        full=full,
        objects=False,
    )
