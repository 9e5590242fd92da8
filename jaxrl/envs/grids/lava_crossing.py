"""Cross rivers of lava, each with one opening, to the goal: MiniGrid's `LavaCrossing`.

Rules, observation and reward as in `jaxrl.envs.grids.minigrid`. `crossings` straight rivers run
across the room at random even rows and columns, with openings on a random path from room to room.
The agent starts in the upper left corner, facing east; the goal is in the lower right corner.
Terminates on the goal and in lava (reward 0, and 1 in the cost channel); time limit 4 * size**2
steps. `MiniGrid-LavaCrossingS9N1-v0` and, by `size` and `crossings`, its siblings, with their
distribution of levels; `obstacle="wall"` is `MiniGrid-SimpleCrossing`. Expert: takes the fewest
actions.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Key
from jaxrl.envs.grids import cells, levels, moves
from jaxrl.envs.grids.minigrid import minigrid, to_goal
from jaxrl.envs.options import at_least, one_of


@functools.cache
def lava_crossing(
    size: int = 9, crossings: int = 1, obstacle: str = "lava", full: bool = False
) -> Environment:
    """The room of `size` x `size` cells (odd), walls included. `full`: observe all of it."""
    at_least("lava_crossing", "size", size, 5, odd=True)
    most = size - 3  # one for each even row and column
    at_least("lava_crossing", "crossings", crossings, 1)
    if crossings > most:
        raise UserError(
            f"The crossings of 'lava_crossing' are {crossings!r}; "
            f"with size {size} it must be an integer from 1 to {most}."
        )
    one_of("lava_crossing", "obstacle", obstacle, cells.OBSTACLES)
    barrier = cells.OBSTACLES[obstacle]
    room = levels.walled_room(size, size)
    rows, columns = levels.rows_and_columns(room.shape)
    inside = (rows > 0) & (rows < size - 1) & (columns > 0) & (columns < size - 1)
    lines = jnp.arange(size)

    def generate(key: Key) -> moves.State:
        order, draws = jax.random.split(key)
        rank = jax.random.bits(order, (most,), jnp.uint32)
        chosen = (rank[:, None] > rank[None, :]).sum(1) < crossings
        at_column, at_row = chosen[: most // 2], chosen[most // 2 :]
        # [size]: whether a river runs along this column (row): even ones, except for the walls.
        spread = lambda flags: (flags[:, None] & (np.arange(2) == 0)).reshape(-1)
        line = lambda flags: jnp.pad(spread(flags), (2, 1))
        across, along = line(at_column), line(at_row)
        river = (across[None, :] | along[:, None]) & inside
        grid = jnp.where(river, barrier, room)

        # Rooms lie between rivers; the path leads right or down from room to room, one opening
        # each.
        left, top = jnp.int32(0), jnp.int32(0)  # the river, or wall, at the room's left and top
        for number, (turn, place) in enumerate(levels.uniform(draws, (crossings, 2))):
            right, bottom = _next(across, left, size), _next(along, top, size)
            rightwards = (across & (lines > left)).sum()
            goes_right = levels.below(turn, crossings - number) < rightwards
            low, high = jnp.where(goes_right, top, left), jnp.where(goes_right, bottom, right)
            gap = low + 1 + levels.below(place, high - low - 1)
            row = jnp.where(goes_right, gap, bottom)
            column = jnp.where(goes_right, right, gap)
            grid = jnp.where((rows == row) & (columns == column), cells.EMPTY, grid)
            left, top = jnp.where(goes_right, right, left), jnp.where(goes_right, top, bottom)
        grid = jnp.where((rows == size - 2) & (columns == size - 2), cells.GOAL, grid)
        return moves.start(grid, 1, 1)

    return minigrid(
        "lava_crossing",
        generate,
        room.shape,
        4 * size**2,
        to_goal(size * (crossings + 2) + 8),
        full=full,
        objects=False,
        cost=True,
    )


def _next(line: jax.Array, after: jax.Array, size: int) -> jax.Array:
    """Return the first river beyond `after`, or the wall."""
    places = jnp.arange(size)
    return jnp.where(line & (places > after), places, size - 1).min()
