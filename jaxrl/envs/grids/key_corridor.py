"""Find the key, unlock the room, pick up the ball: MiniGrid's `KeyCorridor`.

Rules, observation and reward as in `jaxrl.envs.grids.minigrid`. A corridor with rooms on both
sides; a ball of a random color lies in a locked room on the right, the key, of the door's random
color, in a room on the left; other doors are closed. The hand must be empty to pick up the ball.
Terminates when the ball is picked up; time limit 30 * room_size**2 steps.
`MiniGrid-KeyCorridorS3R3-v0` and, by `room_size` and `rows`, its siblings, with their distribution
of levels. Expert: takes the fewest actions, except for where it drops the key.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs.grids import cells, levels, moves, paths
from jaxrl.envs.grids.minigrid import Params, minigrid
from jaxrl.envs.options import at_least

_NEVER = np.float32(2.0)  # beyond every priority


@functools.cache
def key_corridor(room_size: int = 3, rows: int = 3, full: bool = False) -> Environment:
    """The corridor with `rows` rooms of `room_size` cells (walls included) on each side. `full`:
    observe all of it."""
    at_least("key_corridor", "room_size", room_size, 3)
    at_least("key_corridor", "rows", rows, 1)
    pitch, inner = room_size - 1, room_size - 2
    height, width = pitch * rows + 1, pitch * 3 + 1
    ys, xs = levels.rows_and_columns((height, width))
    walls = (ys % pitch == 0) | (xs % pitch == 0)
    hallway = (xs > pitch) & (xs < 2 * pitch) & (ys > 0) & (ys < height - 1)
    plan = np.where(walls & ~hallway, cells.WALL, cells.EMPTY).astype(np.uint8)
    # Possible doors: from the left rooms to the corridor, from the right ones, and between
    # neighbors on the left and on the right; and the walls that they are in.
    sides = [(row, side) for side in (1, 2) for row in range(rows)]
    stairs = [(row, side) for side in (0, 2) for row in range(rows - 1)]
    doors = len(sides) + len(stairs)
    # Where the agent may start: the middle of the corridor, from this row on, [hall_rows, inner].
    top = max(rows // 2 * pitch, 1)
    hall_rows = min(rows // 2 * pitch + pitch, height - 2) - top + 1
    starts = np.indices((4, hall_rows, inner))

    def generate(key: Key) -> moves.State:
        number_key, agent_key = jax.random.split(key)
        u = levels.uniform(number_key, (3 * doors + 7,))
        priority, place, color = u[:doors], u[doors : 2 * doors], u[2 * doors : 3 * doors]
        rest = u[3 * doors :]
        locked_row, key_row = levels.below(rest[0], rows), levels.below(rest[1], rows)
        colors = levels.below(color, cells.COLORS)
        places = 1 + levels.below(place, inner)
        locked = jnp.arange(doors) == rows + locked_row
        present = _connecting_doors(priority, locked_row, rows)
        codes = jnp.where(present, cells.code(cells.CLOSED, colors), cells.UNSEEN)
        codes = jnp.where(locked, cells.code(cells.LOCKED, colors), codes)
        codes = levels.materialize(codes.astype(jnp.uint8))

        grid = jnp.asarray(plan)
        for index, (row, side) in enumerate([*sides, *stairs]):
            if index < len(sides):
                here = (xs == side * pitch) & (ys == row * pitch + places[index])
            else:
                here = (ys == (row + 1) * pitch) & (xs == side * pitch + places[index])
            grid = jnp.where(here & (codes[index] != cells.UNSEEN), codes[index], grid)

        def inside(row: Array, side: int, number: Array) -> Array:
            cell = levels.below(number, inner * inner)
            y, x = row * pitch + 1 + cell // inner, side * pitch + 1 + cell % inner
            return (ys == y) & (xs == x)

        ball = cells.code(cells.BALL, levels.below(rest[2], cells.COLORS))
        grid = jnp.where(inside(locked_row, 2, rest[3]), ball, grid)
        grid = jnp.where(
            inside(key_row, 0, rest[4]), cells.code(cells.KEY, (colors * locked).sum()), grid
        )
        # Anywhere in the middle of the corridor, but not with the locked door in front.
        lock_row = locked_row * pitch + (places * locked).sum()
        barred = (
            (starts[0] == cells.EAST) & (starts[1] + top == lock_row) & (starts[2] == inner - 1)
        )
        chosen = levels.pick(agent_key, ~barred)
        place, heading = chosen % (hall_rows * inner), chosen // (hall_rows * inner)
        return moves.start(grid, top + place // inner, pitch + 1 + place % inner, heading)

    return minigrid(
        "key_corridor",
        generate,
        (height, width),
        30 * room_size**2,
        functools.partial(_expert, 4 * (height + width)),
        judge=_judge,
        full=full,
    )


def _connecting_doors(priority: Array, locked_row: Array, rows: int) -> Array:
    """Return the unlocked doors, bool [doors]. Like MiniGrid, which adds doors in random order
    until every room can be reached, none of them to the locked room, this takes the doors up to the
    smallest priority that connects all rooms, which is the largest of the rooms' bottlenecks."""
    left, right = priority[:rows], priority[rows : 2 * rows]
    left_stairs, right_stairs = priority[2 * rows : 3 * rows - 1], priority[3 * rows - 1 :]
    row = jnp.arange(rows)
    right = jnp.where(row == locked_row, _NEVER, right)
    steps = jnp.arange(rows - 1)
    beside = (steps == locked_row) | (steps + 1 == locked_row)
    right_stairs = jnp.where(beside, _NEVER, right_stairs)

    def bottlenecks(entry: Array, stairs: Array) -> Array:
        down, up = jnp.pad(stairs, (1, 0), constant_values=_NEVER), stairs
        up = jnp.pad(up, (0, 1), constant_values=_NEVER)
        reach = entry
        for _ in range(rows - 1):
            above = jnp.pad(reach[:-1], (1, 0), constant_values=_NEVER)
            below = jnp.pad(reach[1:], (0, 1), constant_values=_NEVER)
            reach = jnp.minimum(reach, jnp.maximum(above, down))
            reach = jnp.minimum(reach, jnp.maximum(below, up))
        return reach

    on_right = jnp.where(row == locked_row, 0.0, bottlenecks(right, right_stairs))
    last = jnp.maximum(bottlenecks(left, left_stairs).max(), on_right.max())
    return jnp.concatenate([left, right, left_stairs, right_stairs]) <= last


def _judge(
    state: moves.State, action: Array, after: moves.State, entered: Array
) -> tuple[Array, Array]:
    del state, action, entered
    return cells.kind(after.carrying) == cells.BALL, jnp.zeros((), bool)


def _expert(passes: int, state: moves.State, params: Params) -> Array:
    del params
    return paths.follow(state, passes, take=cells.BALL, locks=True)
