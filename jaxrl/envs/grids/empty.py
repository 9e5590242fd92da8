"""Cross an empty room to the goal in its corner: MiniGrid's `Empty`.

Rules, observation and reward as in `jaxrl.envs.grids.minigrid`; walls hide nothing here (as in
MiniGrid; with `see_through=False` they do). The agent starts in the upper left corner, facing east,
or with `random_start` in any free cell and heading; the goal is in the lower right corner.
Terminates on the goal; time limit 4 * size**2 steps. `MiniGrid-Empty-8x8-v0` and, by `size` and
`random_start`, its siblings. Expert: takes the fewest actions.
"""

from __future__ import annotations

import functools

from jaxrl.core.types import Environment, Key
from jaxrl.envs.grids import cells, levels, moves
from jaxrl.envs.grids.minigrid import minigrid, to_goal
from jaxrl.envs.options import at_least


@functools.cache
def empty(
    size: int = 8, random_start: bool = False, full: bool = False, see_through: bool = True
) -> Environment:
    """The room of `size` x `size` cells, walls included. `full`: observe all of it."""
    at_least("empty", "size", size, 4)
    room = levels.walled_room(size, size)
    room[-2, -2] = cells.GOAL
    inner = size - 2

    def generate(key: Key) -> moves.State:
        if not random_start:
            return moves.start(room, 1, 1)
        places = inner * inner - 1  # all but the goal, which is the last
        number = levels.below(levels.uniform(key), 4 * places)
        place, heading = number // 4, number % 4
        return moves.start(room, 1 + place // inner, 1 + place % inner, heading)

    return minigrid(
        "empty",
        generate,
        room.shape,
        4 * size**2,
        to_goal(2 * size + 4),
        full=full,
        see_through=see_through,
        objects=False,
        room=room,
    )
