"""Pass the one gap in a strip of lava: MiniGrid's `LavaGap`.

Rules, observation and reward as in `jaxrl.envs.grids.minigrid`. A strip of lava across the room, at
a random column, has a gap at a random row. The agent starts in the upper left corner, facing east;
the goal is in the lower right corner. Terminates on the goal and in lava (reward 0, and 1 in the
cost channel); time limit 4 * size**2 steps. `MiniGrid-LavaGapS7-v0` and, by `size`, its siblings;
`obstacle="wall"` makes the strip a wall. Expert: takes the fewest actions.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from jaxrl.core.types import Environment, Key
from jaxrl.envs.grids import cells, levels, moves
from jaxrl.envs.grids.minigrid import minigrid, to_goal
from jaxrl.envs.options import at_least, one_of


@functools.cache
def lava_gap(size: int = 7, obstacle: str = "lava", full: bool = False) -> Environment:
    """The room of `size` x `size` cells, walls included. `full`: observe all of it."""
    at_least("lava_gap", "size", size, 5)
    one_of("lava_gap", "obstacle", obstacle, cells.OBSTACLES)
    barrier = cells.OBSTACLES[obstacle]
    room = levels.walled_room(size, size)
    room[-2, -2] = cells.GOAL
    rows, columns = levels.rows_and_columns(room.shape)
    inside = (rows > 0) & (rows < size - 1)

    def generate(key: Key) -> moves.State:
        draws = levels.uniform(key, (2,))
        column = 2 + levels.below(draws[0], size - 4)
        row = 1 + levels.below(draws[1], size - 2)
        return moves.start(
            jnp.where((columns == column) & (rows != row) & inside, barrier, room), 1, 1
        )

    return minigrid(
        "lava_gap",
        generate,
        room.shape,
        4 * size**2,
        to_goal(2 * size + 8),
        full=full,
        objects=False,
        cost=True,
    )
