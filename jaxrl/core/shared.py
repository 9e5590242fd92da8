"""Parts of a state that all members of a run share and no step changes, such as a dataset.

A shared part is in memory once, however many members there are. A checkpoint holds only its
checksum. It is found by its type, `Shared`, however the state is wrapped.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Tree, static, struct


class Original:
    """Arrays on the host that states hold copies of. Messages call them `name`."""

    def __init__(self, value: Tree, name: str):
        self.name = name
        self.value = jax.tree.map(_canonical, value)
        digest = 0
        for leaf in jax.tree.leaves(self.value):
            digest = zlib.crc32(leaf.reshape(-1).view(np.uint8), digest)
        self.digest = np.uint32(digest)

    def shared(self) -> Shared:
        """Make a copy for a state. The program that makes it reads the arrays when it runs and does
        not capture them, which would hold them in memory once more."""
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self.value)
        value = jax.pure_callback(lambda: self.value, shapes, vmap_method="sequential")
        return Shared(value, jnp.asarray(self.digest), self)


def _canonical(x) -> np.ndarray:
    return np.ascontiguousarray(x, jax.dtypes.canonicalize_dtype(jnp.result_type(x)))


@struct
class Shared:
    """A part of a state that is the same for all members of a run and at every step."""

    value: Tree
    """The arrays; None after `strip`."""
    digest: Array
    """CRC-32 of the arrays: uint32."""
    original: Original = static()
    """The arrays on the host."""


def is_shared(x: Tree) -> bool:
    """Return whether `x` is a shared part."""
    return isinstance(x, Shared)


def has_shared(state: Tree) -> bool:
    """Return whether `state` has shared parts."""
    return any(map(is_shared, jax.tree.leaves(state, is_leaf=is_shared)))


def axes(state: Tree) -> Tree:
    """Return the `in_axes` and `out_axes` of `jax.vmap` for a state of several members, so that
    shared parts are not copied for each:

        one = jax.eval_shape(lambda key: start(algorithm, key), keys[0])
        runs = jax.vmap(lambda key: start(algorithm, key), out_axes=axes(one))(keys)
        more = lambda run: train(algorithm, run, 100)
        runs, rows = jax.vmap(more, in_axes=(axes(runs),), out_axes=(axes(runs), 0))(runs)
    """
    return jax.tree.map(lambda x: None if is_shared(x) else 0, state, is_leaf=is_shared)


def member(state: Tree, i: int | np.ndarray) -> Tree:
    """Return the state of member `i`, or the states of several members by an array of indices."""
    return jax.tree.map(lambda x: x if is_shared(x) else x[i], state, is_leaf=is_shared)


def strip(state: Tree) -> Tree:
    """Return `state` without the shared arrays, as a checkpoint holds it."""
    leave_out = lambda x: Shared(None, x.digest, x.original) if is_shared(x) else x
    return jax.tree.map(leave_out, state, is_leaf=is_shared)


def fill(state: Tree) -> Tree:
    """Return `state` with the arrays that `strip` left out."""
    put_back = lambda x: x.original.shared() if is_shared(x) else x
    return jax.tree.map(put_back, state, is_leaf=is_shared)


def changed_names(state: Tree) -> list[str]:
    """Return the names of the shared parts whose arrays in this process differ from those that a
    restored `state` was saved with."""
    parts = filter(is_shared, jax.tree.leaves(state, is_leaf=is_shared))
    return [part.original.name for part in parts if part.digest != part.original.digest]
