"""Observations of a grid: the part ahead of the agent, as in MiniGrid, or the whole."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array
from jaxrl.envs.grids import cells, levels, moves

# Written for XLA on a CPU, where indexing one cell at a time costs more than the rest of a step:
# one slice of bytes, a select between its four rotations, occlusion on rows as bits, and the three
# channels made last, in one loop over flat bytes.


def ahead_of(
    grid: Array,
    row: Array,
    column: Array,
    heading: Array,
    carrying: Array,
    size: int = 7,
    see_through: bool = False,
) -> Array:
    """Return the view ahead of the agent, uint8 [size, size, 3] (object, color, state), as
    MiniGrid's `image`: the first axis goes across from left to right, the second from far to near,
    and `[size // 2, size - 1]` is the agent's place, which shows what it carries. Beyond the grid
    there is wall; hidden cells are 0."""
    codes = _square_ahead(grid, row, column, heading, size)
    across, along = (x.reshape(-1) for x in np.mgrid[:size, :size])
    view = _rotate(codes, heading).reshape(-1)
    if not see_through:
        words = [levels.materialize(word) for word in _visible(codes, heading)]
        rows = 32 // size  # rows of the view in one word
        shift = (along % rows * size + across).astype(np.uint32)
        seen = words[0] >> shift
        for index, word in enumerate(words[1:], 1):
            seen = jnp.where(along // rows == index, word >> shift, seen)
        view = jnp.where(seen & 1 == 1, view, np.uint8(cells.UNSEEN))
    mine = (across == size // 2) & (along == size - 1)
    view = jnp.where(mine, carrying, view)
    channel = jax.lax.broadcasted_iota(jnp.uint8, (size * size, 3), 1)
    return cells.symbols(view[:, None], channel).reshape(size, size, 3)


def whole(
    grid: Array, row: Array, column: Array, heading: Array | int, under: bool = False
) -> Array:
    """Return the whole grid, uint8 [H, W, 3] (object, color, state), with the agent as object 10,
    its heading as state, and 0 as color, or with `under` the kind of the cell under it."""
    height, width = grid.shape
    channel = jax.lax.broadcasted_iota(jnp.uint8, (height, width, 3), 2)
    shown = cells.symbols(grid[:, :, None], channel)
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, (height, width, 3), a) for a in (0, 1))
    here = (rows == row) & (columns == column)
    color = cells.symbols(grid[:, :, None], 0) if under else np.uint8(0)
    agent = jnp.where(channel == 1, color, jnp.asarray(heading, jnp.uint8))
    agent = jnp.where(channel == 0, np.uint8(cells.AGENT), agent)
    return jnp.where(here, agent, shown)


def from_table(
    look: Callable[[Array, Array, Array], Array], shape: tuple[int, int]
) -> Callable[[moves.State], Array]:
    """Turn `look(row, column, heading)` into a function of the state that reads a table of all
    views in a grid of this shape, which must never change."""
    places = np.indices((*shape, 4), np.int32).reshape(3, -1)
    with jax.ensure_compile_time_eval():
        table = np.asarray(jax.jit(jax.vmap(look))(*places))

    def observe(state: moves.State) -> Array:
        index = (state.row * shape[1] + state.column) * 4 + state.heading
        return jnp.asarray(table).at[index].get(mode="promise_in_bounds")

    return observe


def _square_ahead(grid: Array, row: Array, column: Array, heading: Array, size: int) -> Array:
    """Slice the square that is in view, uint8 [size, size], with rows and columns as in the
    grid."""
    padded = jnp.pad(grid, size - 1, constant_values=cells.WALL)
    half = size // 2
    # Offset from the agent to the upper left corner, then the corner in the padded grid.
    up = jnp.where(heading == cells.NORTH, size - 1, jnp.where(heading == cells.SOUTH, 0, half))
    left = jnp.where(heading == cells.WEST, size - 1, jnp.where(heading == cells.EAST, 0, half))
    corner = (row - up + size - 1, column - left + size - 1)
    return jax.lax.dynamic_slice(padded, corner, (size, size))


def _rotate(codes: Array, heading: Array) -> Array:
    """Rotate the square to [across, along]."""
    north, south = codes.T, codes.T[::-1, ::-1]
    east, west = codes[:, ::-1], codes[::-1]
    across = jnp.where(heading == cells.EAST, east, west)
    return jnp.where(
        heading == cells.NORTH, north, jnp.where(heading == cells.SOUTH, south, across)
    )


def _visible(codes: Array, heading: Array) -> list[Array]:
    """Return which cells of the view are visible: uint32 words of as many whole rows (across) as
    fit, the farthest row first, bit 0 at the left.

    MiniGrid spreads light away from the agent's row: within a row through transparent cells, and
    from each lit transparent cell to the three cells ahead of it in the next row. The effect of its
    two sweeps over a row: for each run of transparent cells with a light in it, all its cells, both
    neighbors and the cells ahead of these are lit.
    """
    size = codes.shape[0]
    clear = ~cells.is_opaque(codes)
    flipped = (heading == cells.SOUTH) | (heading == cells.WEST)
    bits = (1 << np.arange(size)).astype(np.uint32)
    weight = jnp.where(flipped, bits[::-1], bits)
    by_row = jnp.where(clear, weight[None, :], np.uint32(0)).sum(1, dtype=jnp.uint32)
    by_column = jnp.where(clear, weight[:, None], np.uint32(0)).sum(0, dtype=jnp.uint32)
    vertical = (heading == cells.NORTH) | (heading == cells.SOUTH)
    backward = (heading == cells.EAST) | (heading == cells.SOUTH)
    lines = jnp.where(vertical, by_row, by_column)
    lines = jnp.where(backward, lines[::-1], lines)

    full = np.uint32((1 << size) - 1)
    lit: Array = jnp.uint32(1 << size // 2)
    seen: list[Array] = [lit] * size
    for index in reversed(range(size)):
        open_ = lines[index]
        light = lit & open_
        # An addition carries each light to the end of its run; doubling shifts carry it back.
        light = (((open_ + light) ^ open_) | light) & open_
        through, step = open_, 1
        while step < size:
            light = light | (through & (light >> np.uint32(step)))
            through = through & (through >> np.uint32(step))
            step *= 2
        spread = (light | (light << np.uint32(1)) | (light >> np.uint32(1))) & full
        seen[index] = lit | spread
        lit = spread
    rows = 32 // size
    words = []
    for first in range(0, size, rows):
        word = seen[first]
        for offset, line in enumerate(seen[first + 1 : first + rows], 1):
            word = word | (line << np.uint32(offset * size))
        words.append(word)
    return words
