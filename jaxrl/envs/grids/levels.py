"""Levels from a key or from a number, and the choices that generators make."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Key
from jaxrl.envs.grids import cells

FRESH = -1  # `Params.level`: a new level every episode
_LEVELS = np.uint32(0x1E7E15ED)  # words of the key that numbered levels are folded into


def key_of(key: Key, level: Array | int) -> Key:
    """The key that a level is drawn from: `key` itself where `level` is negative, else one that
    depends on `level` and the generator of `key` only."""
    constant = jax.random.wrap_key_data(
        jnp.full_like(jax.random.key_data(key), _LEVELS), impl=jax.random.key_impl(key)
    )
    level = jnp.asarray(level, jnp.int32)
    return jnp.where(level < 0, key, jax.random.fold_in(constant, level))


def materialize(values: Array) -> Array:
    """`values` (none negative), worked out once. Whatever looks cheap to XLA on a CPU, random bits
    too, it would work out anew for each cell and pixel that depends on it; a reduction never."""
    return (values[..., None] * np.array([1, 0], values.dtype)).max(-1)


def uniform(key: Key, shape: tuple[int, ...] = ()) -> Array:
    """float32 in [0, 1), for levels: settled."""
    return materialize(jax.random.uniform(key, shape))


def below(uniform: Array, n: Array | int) -> Array:
    """int32 in 0 .. n - 1 from a uniform number in [0, 1); both broadcast."""
    return jnp.minimum((uniform * n).astype(jnp.int32), jnp.asarray(n, jnp.int32) - 1)


def pick(key: Key, mask: Array) -> Array:
    """int32: the flat index of a random true element of `mask` (0 where there is none)."""
    # The greatest of random numbers that end in their index: one plain maximum, no argmax.
    low = np.uint32((1 << (mask.size - 1).bit_length()) - 1)
    bits = jax.random.bits(key, (mask.size,), jnp.uint32) & ~low | np.arange(
        mask.size, dtype=np.uint32
    )
    return (jnp.where(mask.reshape(-1), bits, 0).max() & low).astype(jnp.int32)


def walled_room(height: int, width: int) -> np.ndarray:
    """uint8 [height, width]: empty, with a wall around."""
    grid = np.full((height, width), cells.WALL, np.uint8)
    grid[1:-1, 1:-1] = cells.EMPTY
    return grid


def rows_and_columns(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """int32 [height, 1] and [1, width]."""
    return np.arange(shape[0], dtype=np.int32)[:, None], np.arange(shape[1], dtype=np.int32)[None]
