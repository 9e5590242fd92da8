"""Reach a given place through rooms whose doors open in one direction only.

Observation, actions, reward, termination and `goals` as in `jaxrl.envs.grids.goals` (with the four
planes of doors); a one-way door can be entered in its direction only, though left on either side.
Time limit 4 * the grid's free cells. Rooms in `rows` x `columns`, with one door between any two
neighbors at a random place; the doors along one loop through all rooms point the same way around
(clockwise or not, at random), so that every place can be reached from every other; the other doors
point in random directions. With `maze` the doors are the same in every episode. Distances are not
symmetric: a test bed for quasimetric value functions, after the one-way-door grid of Wang and Isola
(2022), "On the Learning and Learnability of Quasimetrics", with a layout of our own. Expert: a
shortest path.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs.grids import cells, levels
from jaxrl.envs.grids.goals import goal_environment
from jaxrl.envs.options import at_least


@functools.cache
def one_way_doors(
    rows: int = 2,
    columns: int = 3,
    room_size: int = 5,
    observe: str = "planes",
    maze: int = levels.FRESH,
) -> Environment:
    """The `rows` x `columns` rooms of `room_size` cells, walls included. `observe`: "planes" or
    "position". `maze`: number of the doors of all episodes; -1 for new ones."""
    for label, value in (("rows", rows), ("columns", columns)):
        at_least("one_way_doors", label, value, 2)
    at_least("one_way_doors", "room_size", room_size, 3)
    at_least("one_way_doors", "maze", maze, levels.FRESH)
    if rows % 2 and columns % 2:
        raise UserError(
            f"The rooms of 'one_way_doors' are {rows} x {columns}; one of the two must be even, "
            "or there is no loop through all rooms."
        )
    pitch, inner = room_size - 1, room_size - 2
    height, width = rows * pitch + 1, columns * pitch + 1
    ys, xs = levels.rows_and_columns((height, width))
    walls = (ys % pitch == 0) | (xs % pitch == 0)
    follow = _round(rows, columns)
    # Every wall between neighbors: the first room, and whether the second is to the east or below.
    borders = [((r, c), (r, c + 1)) for r in range(rows) for c in range(columns - 1)]
    borders += [((r, c), (r + 1, c)) for r in range(rows - 1) for c in range(columns)]

    def draw(key: Key) -> Array:
        draws = levels.uniform(key, (2 * len(borders) + 1,))
        places = 1 + levels.below(draws[: len(borders)], inner)
        turns = draws[len(borders) :] < 0.5
        grid = jnp.where(walls, cells.WALL, cells.EMPTY)
        for index, (one, two) in enumerate(borders):
            sideways = one[0] == two[0]
            forward = turns[index]
            if follow[one] == two or follow[two] == one:
                forward = turns[-1] == (follow[one] == two)
            if sideways:
                here = (xs == two[1] * pitch) & (ys == one[0] * pitch + places[index])
                ways = (cells.EAST, cells.WEST)
            else:
                here = (ys == two[0] * pitch) & (xs == one[1] * pitch + places[index])
                ways = (cells.SOUTH, cells.NORTH)
            door = jnp.where(forward, *(cells.code(cells.ONE_WAY, way) for way in ways))
            grid = jnp.where(here, door, grid)
        return grid

    free = int((~walls).sum()) + len(borders)
    return goal_environment(
        "one_way_doors",
        draw,
        (height, width),
        4 * free,
        observe,
        one_way=True,
        passes=free,
        fixed=None if maze == levels.FRESH else levels.fixed(draw, maze),
    )


def _round(rows: int, columns: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Map each room to the next one on a loop through all rooms: along the first column and back
    through the rest in a snake (for an even number of rows, else with rows and columns
    exchanged)."""
    if rows % 2:
        return {(r, c): (y, x) for (c, r), (x, y) in _round(columns, rows).items()}
    tour = []
    for row in range(rows):
        snake = range(1, columns) if row % 2 == 0 else range(columns - 1, 0, -1)
        tour += [(row, column) for column in snake]
    tour += [(row, 0) for row in reversed(range(rows))]
    return dict(zip(tour, [*tour[1:], tour[0]], strict=True))
