"""Fetch the key, unlock the door, go to the goal: MiniGrid's `DoorKey`.

Rules, observation and reward as in `jaxrl.envs.grids.minigrid`. A wall divides the room at a random
column; a locked yellow door is at a random place in it; the agent (random heading) and the yellow
key are at random places to the left, the goal is in the lower right corner. Terminates on the goal;
time limit 10 * size**2 steps. `MiniGrid-DoorKey-8x8-v0` and, by `size`, its siblings, with their
distribution of levels. Expert: takes the fewest actions.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from jaxrl.core.types import Environment, Key
from jaxrl.envs.grids import cells, levels, moves
from jaxrl.envs.grids.minigrid import minigrid, to_goal
from jaxrl.envs.options import at_least


@functools.cache
def door_key(size: int = 8, full: bool = False) -> Environment:
    """The room of `size` x `size` cells, walls included. `full`: observe all of it."""
    at_least("door_key", "size", size, 5)
    room = levels.walled_room(size, size)
    room[-2, -2] = cells.GOAL
    rows, columns = levels.rows_and_columns(room.shape)
    inner = size - 2

    def generate(key: Key) -> moves.State:
        draws = levels.uniform(key, (5,))
        wall = 2 + levels.below(draws[0], size - 4)
        door = 1 + levels.below(draws[1], size - 3)  # never beside the goal's row, as in MiniGrid
        width = wall - 1
        agent = levels.below(draws[2], width * inner)
        place = levels.below(draws[3], width * inner - 1)
        place = place + (place >= agent)  # anywhere but where the agent is
        grid = jnp.where(columns == wall, cells.WALL, room)
        grid = jnp.where(
            (columns == wall) & (rows == door), cells.code(cells.LOCKED, cells.YELLOW), grid
        )
        key_here = (columns == 1 + place % width) & (rows == 1 + place // width)
        grid = jnp.where(key_here, cells.code(cells.KEY, cells.YELLOW), grid)
        return moves.start(grid, 1 + agent // width, 1 + agent % width, levels.below(draws[4], 4))

    return minigrid(
        "door_key",
        generate,
        room.shape,
        10 * size**2,
        to_goal(4 * size + 8, locks=True),
        full=full,
    )
