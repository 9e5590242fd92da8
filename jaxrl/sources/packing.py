"""Trees of arrays as rows of 32-bit words: one gather or one write for all leaves of an item.

A replay buffer moves a few items at a time. On a CPU each leaf would cost a loop of its own, which
takes longer than its few numbers, and each bool would cost a byte.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.staging import isolate
from jaxrl.core.types import Array, Tree, static, struct

WORD = 32
UNSIGNED = {1: jnp.bool_, 8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Shape and dtype of a leaf of one item."""

    shape: tuple[int, ...]
    dtype: Any
    generator: Any = None
    """The generator of a leaf of keys; None for numbers."""

    @property
    def width(self) -> int:
        """Bits of the unsigned integers that the leaf is stored as."""
        if self.dtype == jnp.bool_:
            return 1
        return WORD if self.generator is not None else min(WORD, 8 * self.dtype.itemsize)

    @property
    def count(self) -> int:
        """Number of these integers in one item."""
        bits = 1 if self.width == 1 else 8 * self.dtype.itemsize
        return math.prod(self.shape) * bits // self.width


@dataclasses.dataclass(frozen=True)
class Layout:
    """Structure and leaves of the tree that an item was packed from."""

    structure: Any
    leaves: tuple[Leaf, ...]


@struct
class Packed:
    """Items [...] of one layout. As a tree it has one leaf, the words."""

    words: Array
    """W words for each item: uint32 [..., W]."""
    layout: Layout = static()


def pack(tree: Tree, axes: int) -> Packed:
    """Pack a tree, whose leaves share their first `axes` axes (of the items), exact to the bit.
    Leaves are bools, numbers of 1, 2, 4 or 8 bytes, and typed keys; there must be at least one."""
    leaves, structure = jax.tree.flatten(tree)
    layout = Layout(structure, tuple(_leaf(x, axes) for x in leaves))
    words = []
    for width in UNSIGNED:
        same = [
            _to_unsigned(x, leaf).reshape(*x.shape[:axes], leaf.count)
            for x, leaf in zip(leaves, layout.leaves, strict=True)
            if leaf.width == width
        ]
        words += [_to_words(same, width)] if same else []
    return Packed(jnp.concatenate(words, -1), layout)


def unpack(packed: Packed) -> Tree:
    """Return the tree that `pack` was given, for the items in `packed`."""
    return unflatten(flatten(packed), packed.layout)


def flatten(packed: Packed) -> list[Array]:
    """Return the leaves as [..., k], with keys as their data."""
    words, start, found = packed.words, 0, {}
    for width in UNSIGNED:
        places = [i for i, leaf in enumerate(packed.layout.leaves) if leaf.width == width]
        counts = [packed.layout.leaves[i].count for i in places]
        end = start - (-sum(counts) * width // WORD)
        whole, at = _from_words(words[..., start:end], width), 0
        for i, count in zip(places, counts, strict=True):
            found[i] = _from_unsigned(whole[..., at : at + count], packed.layout.leaves[i])
            at += count
        start = end
    return [found[i] for i in range(len(found))]


def unflatten(leaves: list[Array], layout: Layout) -> Tree:
    """Return the tree of the leaves that `flatten` returned."""

    def one(x, leaf):
        lead = x.shape[:-1]
        if leaf.generator is None:
            return x.reshape(*lead, *leaf.shape)
        data = x.reshape(*lead, *leaf.shape, -1)
        return jax.random.wrap_key_data(data, impl=leaf.generator)

    return layout.structure.unflatten(map(one, leaves, layout.leaves))


def _leaf(x: Array, axes: int) -> Leaf:
    key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return Leaf(x.shape[axes:], x.dtype, jax.random.key_impl(x) if key else None)


def _to_unsigned(x: Array, leaf: Leaf) -> Array:
    """Return the numbers of a leaf as unsigned integers: two along a new axis for 8 bytes."""
    if leaf.generator is not None:
        return jax.random.key_data(x)
    return x if leaf.width == 1 else jax.lax.bitcast_convert_type(x, UNSIGNED[leaf.width])


def _from_unsigned(x: Array, leaf: Leaf) -> Array:
    """Invert `_to_unsigned`, but for the generators of keys."""
    if leaf.generator is not None or leaf.width == 1:
        return x
    pairs = leaf.dtype.itemsize * 8 // leaf.width
    x = x.reshape(*x.shape[:-1], -1, pairs) if pairs > 1 else x
    return jax.lax.bitcast_convert_type(x, leaf.dtype)


def _to_words(parts: list[Array], width: int) -> Array:
    """Pack unsigned integers [..., k] of `width` bits into words, neighbors in one word."""
    x, each = jnp.concatenate(parts, -1), WORD // width
    if each == 1:
        return x
    if x.shape[-1] > each:
        short = -x.shape[-1] % each
        x = jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, short)])
    if width == 1 and x.shape[-1] > each:
        return _pack_bits(x)
    x = x.astype(jnp.uint32).reshape(*x.shape[:-1], -1, min(each, x.shape[-1]))
    return functools.reduce(operator.or_, [x[..., i] << i * width for i in range(x.shape[-1])])


def _pack_bits(x: Array) -> Array:
    """Pack bools [..., 32 k] into words [..., k], four bytes at a time, since a loop over single
    bytes is not vectorized. The product brings their lowest bits together at its top."""
    four = x.astype(jnp.uint8).reshape(*x.shape[:-1], -1, 4)
    four = jax.lax.bitcast_convert_type(four, jnp.uint32)
    together = lambda four: (four * jnp.uint32(0x10204080)) >> 28
    four = isolate(four.reshape(-1)[0] < 2**25, together, four)
    four = four.reshape(*x.shape[:-1], -1, 8)
    return functools.reduce(operator.or_, [four[..., i] << 4 * i for i in range(8)])


def _from_words(words: Array, width: int) -> Array:
    """Invert `_to_words`; its padding stays at the end."""
    each = WORD // width
    if each == 1:
        return words
    x = words[..., None] >> jnp.arange(0, WORD, width, dtype=jnp.uint32)
    x = x & jnp.uint32(2**width - 1)
    return x.reshape(*words.shape[:-1], -1).astype(UNSIGNED[width])
