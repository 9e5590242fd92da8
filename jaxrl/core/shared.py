"""What the members of a run have in common and no step changes, such as a dataset.

It lies in memory once, however many members there are, and in no checkpoint: that knows it by its
checksum alone. Whatever wraps a state, a `Shared` in it is found by its type.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Tree, static, struct


class Original:
    """Arrays on the host, of which states hold copies. `name` is what messages call them."""

    def __init__(self, value: Tree, name: str):
        self.name = name
        self.value = jax.tree.map(_canonical, value)
        digest = 0
        for leaf in jax.tree.leaves(self.value):
            digest = zlib.crc32(leaf.reshape(-1).view(np.uint8), digest)
        self.digest = np.uint32(digest)

    def shared(self) -> Shared:
        """A copy for a state. A program that makes one reads the arrays when it runs: none captures
        them, so that they are not in memory once more."""
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self.value)
        value = jax.pure_callback(lambda: self.value, shapes, vmap_method="sequential")
        return Shared(value, jnp.asarray(self.digest), self)


def _canonical(x) -> np.ndarray:
    return np.ascontiguousarray(x, jax.dtypes.canonicalize_dtype(jnp.result_type(x)))


@struct
class Shared:
    """A part of a state that is the same for all members of a run, and at every step."""

    value: Tree  # None where it was left out, see `bare`
    digest: Array  # uint32: CRC-32 of the arrays
    original: Original = static()


def is_shared(x: Tree) -> bool:
    return isinstance(x, Shared)


def axes(state: Tree) -> Tree:
    """What `jax.vmap` has to be told of a state of several members, as `in_axes` and `out_axes`, so
    that what they share is not copied for each:

        one = jax.eval_shape(lambda key: start(algorithm, key), keys[0])
        runs = jax.vmap(lambda key: start(algorithm, key), out_axes=axes(one))(keys)
        more = lambda run: train(algorithm, run, 100)
        runs, rows = jax.vmap(more, in_axes=(axes(runs),), out_axes=(axes(runs), 0))(runs)
    """
    return jax.tree.map(lambda x: None if is_shared(x) else 0, state, is_leaf=is_shared)


def member(state: Tree, i: int | np.ndarray) -> Tree:
    """The state of member `i` of several, or those of several by an array of their numbers."""
    return jax.tree.map(lambda x: x if is_shared(x) else x[i], state, is_leaf=is_shared)


def bare(state: Tree) -> Tree:
    """`state` without the arrays that are shared: what a checkpoint holds."""
    leave_out = lambda x: Shared(None, x.digest, x.original) if is_shared(x) else x
    return jax.tree.map(leave_out, state, is_leaf=is_shared)


def filled(state: Tree) -> Tree:
    """`state` with the arrays that `bare` left out."""
    fill = lambda x: x.original.shared() if is_shared(x) else x
    return jax.tree.map(fill, state, is_leaf=is_shared)


def changed(state: Tree) -> list[str]:
    """Names of what is not, in the process that restored `state`, what it was when that was
    saved."""
    parts = filter(is_shared, jax.tree.leaves(state, is_leaf=is_shared))
    return [part.original.name for part in parts if part.digest != part.original.digest]
