"""Open door after door through a chain of rooms to the goal in the last: MiniGrid's `MultiRoom`.

Rules, observation and reward as in `jaxrl.envs.grids.minigrid`. `rooms` rooms of random places and
sizes (4 to `max_room_size`, walls included), each joined to the last by a closed door of a color
other than that of the door before; the agent (random heading) is at a random place in the first
room, the goal in the last. Terminates on the goal; time limit 20 * rooms steps. The defaults are
`MiniGrid-MultiRoom-N4-S5-v1`, its siblings differ by the arguments; levels have their distribution:
as there, chains are proposed until one has all its rooms (after 200 failures, the longest is used).
That search makes the reset expensive: draw episodes ahead. Expert: takes the fewest actions.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs.grids import cells, levels, moves
from jaxrl.envs.grids.minigrid import minigrid, to_goal
from jaxrl.envs.options import at_least

_TRIES = 8  # attempts to place each room after the first
_ATTEMPTS = 200  # attempts to place a whole chain
_SMALLEST = 4

# A room: column and row of its upper left corner, width and height, and column and row of the door
# that leads into it.
_X, _Y, _W, _H, _DOOR_X, _DOOR_Y = range(6)


@functools.cache
def multi_room(
    rooms: int = 4, max_room_size: int = 5, size: int = 25, full: bool = False
) -> Environment:
    """The chain of `rooms` rooms in `size` x `size` cells. `full`: observe all of it."""
    at_least("multi_room", "rooms", rooms, 1)
    at_least("multi_room", "max_room_size", max_room_size, _SMALLEST)
    at_least("multi_room", "size", size, max_room_size + 3)
    rows, columns = levels.rows_and_columns((size, size))

    def generate(key: Key) -> moves.State:
        chain_key, key = jax.random.split(key)
        chain, count = _chain(chain_key, rooms, max_room_size, size)
        draws = levels.uniform(key, (rooms + 3,))
        grid = jnp.full((size, size), cells.EMPTY, jnp.uint8)
        color = jnp.int32(0)
        for index in range(rooms):
            x, y, w, h, door_x, door_y = chain[index]
            wide, high = (columns >= x) & (columns < x + w), (rows >= y) & (rows < y + h)
            edge = (columns == x) | (columns == x + w - 1) | (rows == y) | (rows == y + h - 1)
            exists = index < count
            grid = jnp.where(wide & high & edge & exists, cells.WALL, grid)
            if index > 0:
                other = 1 + levels.below(draws[index], cells.COLORS - 1)
                first = levels.below(draws[index], cells.COLORS)
                color = first if index == 1 else (color + other) % cells.COLORS
                door = (columns == door_x) & (rows == door_y) & exists
                grid = jnp.where(door, cells.code(cells.CLOSED, color), grid)

        x, y, w, h = chain[0, :4]
        agent = levels.below(draws[0], (w - 2) * (h - 2) * 4)
        place, heading = agent // 4, agent % 4
        row, column = y + 1 + place // (w - 2), x + 1 + place % (w - 2)
        x, y, w, h = chain[count - 1, :4]
        mine = (row - y - 1) * (w - 2) + column - x - 1  # the agent's place, if it were this room
        alone = count == 1
        place = levels.below(draws[-1], (w - 2) * (h - 2) - alone)
        place = place + (alone & (place >= mine))
        goal = (rows == y + 1 + place // (w - 2)) & (columns == x + 1 + place % (w - 2))
        return moves.start(jnp.where(goal, cells.GOAL, grid), row, column, heading)

    return minigrid(
        "multi_room",
        generate,
        (size, size),
        20 * rooms,
        to_goal(20 * rooms),
        full=full,
    )


def _chain(key: Key, rooms: int, largest: int, size: int) -> tuple[Array, Array]:
    """Draw a chain of rooms, int32 [rooms, 6], and the number of them."""

    def attempt(carry: tuple) -> tuple:
        key, best, most, tried = carry
        key, draw = jax.random.split(key)
        chain, count = _attempt(draw, rooms, largest, size)
        longer = count > most
        best = jnp.where(longer, chain, best)
        return key, best, jnp.where(longer, count, most), tried + 1

    def is_incomplete(carry: tuple) -> Array:
        return (carry[2] < rooms) & (carry[3] < _ATTEMPTS)

    # In case nothing is ever found: one room in the middle of the upper left.
    alone = np.zeros((rooms, 6), np.int32)
    alone[0, [_W, _H]] = _SMALLEST
    start = (key, jnp.asarray(alone), jnp.int32(0), jnp.int32(0))
    _, chain, count, _ = lax.while_loop(is_incomplete, attempt, start)
    return chain, jnp.maximum(count, 1)


def _attempt(key: Key, rooms: int, largest: int, size: int) -> tuple[Array, Array]:
    """Draw one chain as MiniGrid's recursion does: it ends where no attempt at the next room
    fits."""
    draws = levels.uniform(key, (rooms, _TRIES, 5))
    chain = jnp.zeros((rooms, 6), jnp.int32)
    alive, count, wall = jnp.bool_(True), jnp.int32(0), jnp.int32(cells.WEST)
    for index in range(rooms):
        u = draws[index]  # [tries, 5]
        w, h = (_SMALLEST + levels.below(u[:, i], largest - _SMALLEST + 1) for i in (0, 1))
        if index == 0:
            door_x, door_y = (levels.below(u[:, i], size - 2) for i in (2, 3))
            x, y, entry = door_x, door_y, jnp.full(_TRIES, wall)
            allowed = np.arange(_TRIES) == 0  # the first room has one attempt
        else:
            last = chain[index - 1]
            # Any wall but the one that leads into the room.
            leave = levels.below(u[:, 2], 3)
            leave = leave + (leave >= wall)
            sideways = (leave == cells.EAST) | (leave == cells.WEST)
            along = 1 + levels.below(u[:, 3], jnp.where(sideways, last[_H], last[_W]) - 2)
            edge = jnp.where(leave == cells.EAST, last[_W] - 1, 0)
            door_x = last[_X] + jnp.where(sideways, edge, along)
            edge = jnp.where(leave == cells.SOUTH, last[_H] - 1, 0)
            door_y = last[_Y] + jnp.where(sideways, along, edge)
            entry = (leave + 2) % 4
            back = 1 + levels.below(u[:, 4], jnp.where(sideways, h, w) - 2)
            x = door_x - jnp.where(sideways, jnp.where(entry == cells.EAST, w - 1, 0), back)
            y = door_y - jnp.where(sideways, back, jnp.where(entry == cells.SOUTH, h - 1, 0))
            allowed = np.ones(_TRIES, bool)
        # The comparisons are MiniGrid's, with their one-sided strictness.
        fits = allowed & (x >= 0) & (y >= 0) & (x + w <= size) & (y + h < size)
        for other in range(index - 1):
            ox, oy, ow, oh = (chain[other, i] for i in (_X, _Y, _W, _H))
            apart = (x + w < ox) | (ox + ow <= x) | (y + h < oy) | (oy + oh <= y)
            fits = fits & apart
        choice = jnp.argmax(fits)
        alive = alive & fits[choice]
        room = jnp.stack([x, y, w, h, door_x, door_y], -1)[choice]
        chain = chain.at[index].set(jnp.where(alive, room, 0))
        wall = entry[choice]
        count = count + alive
    return chain, count
