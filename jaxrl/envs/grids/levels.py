"""Levels from a key or from a number, and the random choices of generators."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.types import Array, Key
from jaxrl.envs.grids import cells

FRESH = -1  # `Params.level`: a new level every episode
_LEVELS = np.uint32(0x1E7E15ED)  # words of the key that numbered levels are folded into


def key_of(key: Key, level: Array | int) -> Key:
    """Return the key that a level is drawn from: `key` itself if `level` is negative, else one that
    depends only on `level` and the generator of `key`."""
    constant = jax.random.wrap_key_data(
        jnp.full_like(jax.random.key_data(key), _LEVELS), impl=jax.random.key_impl(key)
    )
    level = jnp.asarray(level, jnp.int32)
    return jnp.where(level < 0, key, jax.random.fold_in(constant, level))


def fixed(draw: Callable[[Key], Array], number: int) -> np.ndarray:
    """Draw the grid of a number, once and for all: the same with any generator of random
    numbers."""
    with jax.ensure_compile_time_eval():  # also where a trace asks for it first
        return np.asarray(jax.jit(draw)(key_of(random.key(0, random.PCG), number)))


def materialize(values: Array) -> Array:
    """Make XLA compute `values` (none negative) once. On a CPU it recomputes whatever looks cheap,
    random bits included, for each cell and pixel that depends on it, but never a reduction."""
    return (values[..., None] * np.array([1, 0], values.dtype)).max(-1)


def uniform(key: Key, shape: tuple[int, ...] = ()) -> Array:
    """Draw uniform float32 numbers in [0, 1) for levels, computed once."""
    return materialize(jax.random.uniform(key, shape))


def below(uniform: Array, n: Array | int) -> Array:
    """Map a uniform number in [0, 1) to an int32 in 0 .. n - 1; both arguments broadcast."""
    return jnp.minimum((uniform * n).astype(jnp.int32), jnp.asarray(n, jnp.int32) - 1)


def pick(key: Key, mask: Array) -> Array:
    """Pick a random true element of `mask`: its flat index, int32 (0 if there is none)."""
    # The greatest of random numbers whose low bits are their index: one plain maximum, no argmax.
    low = np.uint32((1 << (mask.size - 1).bit_length()) - 1)
    bits = jax.random.bits(key, (mask.size,), jnp.uint32) & ~low | np.arange(
        mask.size, dtype=np.uint32
    )
    return (jnp.where(mask.reshape(-1), bits, 0).max() & low).astype(jnp.int32)


def walled_room(height: int, width: int) -> np.ndarray:
    """Return an empty grid with a wall around it, uint8 [height, width]."""
    grid = np.full((height, width), cells.WALL, np.uint8)
    grid[1:-1, 1:-1] = cells.EMPTY
    return grid


def rows_and_columns(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of rows and columns, int32 [height, 1] and [1, width]."""
    return np.arange(shape[0], dtype=np.int32)[:, None], np.arange(shape[1], dtype=np.int32)[None]
