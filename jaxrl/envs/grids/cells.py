"""Contents of a grid cell: one uint8 code. The low four bits are the kind, the next three the color
(for a one-way door, its direction), and the top bit says that the cell cannot be seen through.
Kinds, colors and door states have MiniGrid's numbers where MiniGrid has them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array

# Kinds up to AGENT are MiniGrid's objects. Here each state of a door is a kind of its own.
UNSEEN, EMPTY_KIND, WALL_KIND, FLOOR, DOOR, KEY, BALL, BOX, GOAL_KIND, LAVA, AGENT = range(11)
CLOSED, LOCKED, ONE_WAY, HAZARD_KIND = 11, 12, 13, 14  # 15 is free

RED, GREEN, BLUE, PURPLE, YELLOW, GRAY = range(6)
COLORS = 6
EAST, SOUTH, WEST, NORTH = range(4)  # headings and compass actions, as MiniGrid's directions

_OPAQUE = 128
SYMBOLS = 13  # objects that `symbols` tells apart: MiniGrid's 11, one-way door (11), hazard (12)


def code(kind: int, color: Array | int = 0) -> Array:
    """Return the uint8 code of an object; `color` may be traced and of any shape."""
    opaque = _OPAQUE if kind in (WALL_KIND, CLOSED, LOCKED) else 0
    return (jnp.asarray(color, jnp.uint8) << np.uint8(4)) | np.uint8(kind | opaque)


EMPTY = np.uint8(EMPTY_KIND)
WALL = np.uint8(_OPAQUE | GRAY << 4 | WALL_KIND)
GOAL = np.uint8(GREEN << 4 | GOAL_KIND)
LAVA_CODE = np.uint8(RED << 4 | LAVA)
HAZARD = np.uint8(PURPLE << 4 | HAZARD_KIND)
OBSTACLES = {"lava": LAVA_CODE, "wall": WALL}  # obstacles that can bar the way, by name


def kind(codes: Array) -> Array:
    """Return the kinds of `codes`, uint8 of any shape."""
    return codes & np.uint8(15)


def color(codes: Array) -> Array:
    """Return the colors of `codes`, uint8; for a one-way door, its direction."""
    return (codes >> np.uint8(4)) & np.uint8(7)


def is_opaque(codes: Array) -> Array:
    """Return whether each cell hides what is behind it: walls, and doors that are not open."""
    return codes >= _OPAQUE


def is_one_of(codes: Array, kinds: tuple[int, ...]) -> Array:
    """Return whether the kind of each code is among `kinds`."""
    among = np.uint32(sum(1 << k for k in kinds))
    return (among >> kind(codes).astype(jnp.uint32)) & 1 == 1


def is_free(codes: Array) -> Array:
    """Return whether the agent may enter each cell from any side."""
    return is_one_of(codes, (EMPTY_KIND, FLOOR, DOOR, GOAL_KIND, LAVA, HAZARD_KIND))


def symbols(codes: Array, channel: Array | int) -> Array:
    """Return what an observation shows in `channel`, uint8: 0 object, 1 color, 2 state; both
    arguments broadcast.

    The state of a door is 0 open, 1 closed, 2 locked; of a one-way door, its direction.
    """
    k, c = kind(codes), color(codes)
    shown = jnp.where(k >= ONE_WAY, k - 2, jnp.where(k >= CLOSED, np.uint8(DOOR), k))
    state = jnp.where(k == ONE_WAY, c, np.uint8(0))
    state = jnp.where((k == CLOSED) | (k == LOCKED), k - np.uint8(CLOSED - 1), state)
    return jnp.where(channel == 0, shown, jnp.where(channel == 1, c, state))
