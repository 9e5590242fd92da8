"""Screens of a few colored cells: composition by a game, and pictures for people."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array
from jaxrl.envs import drawing

FRAME = 320  # approximate longer side of an image, in pixels

BACKGROUND = (28, 32, 40)
WHITE = (242, 242, 238)
SILVER = (148, 156, 170)
DIM = (70, 78, 92)
BLUE, ORANGE, RED, GREEN = drawing.BLUE, drawing.ORANGE, drawing.RED, drawing.GREEN
GOLD = (238, 200, 72)
SKY = (120, 186, 236)
PINK = (228, 130, 168)

Color = tuple[int, int, int]


def bits(rows: Array, columns: int) -> Array:
    """Return the plane, bool [rows, columns], of a map with one integer per row (int32 [rows]),
    column c in bit c."""
    return ((rows[:, None] >> jnp.arange(columns, dtype=jnp.int32)) & 1) == 1


def compose(planes: Sequence[Array]) -> Array:
    """Compose the observation, bool [rows, columns, channels], of one plane per channel, each bool
    and of a shape that broadcasts to [rows, columns]."""
    return expand(pack(planes), len(planes))


def pack(planes: Sequence[Array]) -> Array:
    """Pack planes into one unsigned integer per cell, plane i in bit i."""
    dtype = jnp.uint8 if len(planes) <= 8 else jnp.uint16
    bits_of_planes = (plane.astype(dtype) << i for i, plane in enumerate(planes))
    return sum(bits_of_planes, start=jnp.zeros((), dtype))


def expand(cells: Array, channels: int) -> Array:
    """Expand the lowest `channels` bits of `cells`, unsigned integers, to bool [..., channels]."""
    # By way of one integer per cell: a stack along the last axis is a branch at every element.
    return ((cells[..., None] >> jnp.arange(channels, dtype=cells.dtype)) & 1) == 1


def picture(observation: Array, colors: Sequence[Color]) -> np.ndarray:
    """Draw `observation`, bool [rows, columns, channels], as uint8 [H, W, 3]: each cell in the
    color of the first channel that is on there (`colors`, one per channel)."""
    channels = np.asarray(observation, bool)
    first = np.where(channels.any(-1), channels.argmax(-1), len(colors))
    table = np.asarray([*colors, BACKGROUND], np.uint8)
    return drawing.tiles(table[first], FRAME // max(first.shape))
