"""Permutations of row indices, for shuffling a batch into minibatches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl.core import errors

METHODS = ("auto", "bijection", "exact")

_ROUNDS = 6


def permutation(key: jax.Array, n: int, method: str = "auto") -> jax.Array:
    """Draw a random order of the n rows of a batch.

    'exact' draws each of the n! orders with the same probability, by `jax.random.permutation`: a
    sort, single-threaded on the CPU, which can take a third of a training step. 'bijection'
    computes each index by itself in a few keyed arithmetic steps that can be undone. It permutes
    all rows anew for every key, and each row lands in each place equally often, but it is not
    uniform over all n! orders: the key's few words can name only some of them. For minibatches that
    has been enough (tests/core/test_shuffle.py compares their statistics).

    Args:
        key: a typed key.
        n: the number of rows, static.
        method: 'exact'; 'bijection', if n is a power of two; or 'auto', the bijection if n is a
            power of two and exact otherwise.

    Returns:
        int32 [n], each of 0 .. n - 1 once.

    Raises:
        UserError: for an unknown method, and for a bijection if n is not a power of two.
    """
    if method not in METHODS:
        raise errors.unknown("shuffle method", method, METHODS)
    power_of_two = n > 0 and n & (n - 1) == 0
    if method == "bijection" and not power_of_two:
        raise errors.UserError(
            f"The shuffle 'bijection' needs a number of rows that is a power of two, not {n}; use "
            "'exact' or 'auto'."
        )
    if method == "exact" or not power_of_two:
        return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))
    return _bijection(key, n)


def _bijection(key: jax.Array, n: int) -> jax.Array:
    """Permute 0 .. n - 1 by rounds of three steps: multiply by an odd number, add a number (mod n),
    xor with the upper half of the bits. Each is a bijection, and the additions put every row
    everywhere equally often."""
    mask, shift = np.uint32(n - 1), np.uint32(max(1, n.bit_length() // 2))
    index = lax.iota(jnp.uint32, n)
    for multiplier, offset in jax.random.bits(key, (_ROUNDS, 2), jnp.uint32):
        index = (index * (multiplier | np.uint32(1)) + offset) & mask
        index = index ^ (index >> shift)
    return index.astype(jnp.int32)
