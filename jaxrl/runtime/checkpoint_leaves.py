"""The leaves of a checkpoint: conversion of a pytree's leaves to NumPy arrays and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Tree
from jaxrl.runtime import processes


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf's entry in `meta.json`.

    `shape` and `dtype` are those that JAX shows, also for keys (`key<pcg>`); `generator` is None
    for a leaf that is not a key.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    generator: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def to_host(tree: Tree) -> tuple[list[Leaf], list[np.ndarray]]:
    """Return every leaf's description, and a copy of its numbers (or a key's data) on the host.

    Several processes gather each leaf together, and only process 0 keeps the copies.
    """
    # Raises errors of the computation of the leaves. On a CPU, reading a leaf whose computation
    # ran out of memory would wait forever (JAX 0.10).
    jax.block_until_ready(tree)
    leaves, arrays = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        described = describe(path, leaf)
        if described.generator is not None:
            leaf = jax.random.key_data(leaf)
        if processes.count() > 1:
            leaf = processes.fetch(leaf)
            if not processes.is_first():
                continue
        try:
            array = np.array(leaf, None if hasattr(leaf, "dtype") else described.dtype)
        except OverflowError as error:
            raise UserError(
                f"The leaf '{described.path}' cannot be stored: {leaf} does not fit {described}."
            ) from error
        if array.dtype.hasobject:  # for example a ShapeDtypeStruct
            raise _no_array(described.path, leaf)
        leaves.append(described)
        arrays.append(array)
    return leaves, arrays


def describe(path: tuple, leaf: Any) -> Leaf:
    """Return a leaf's description. Raises `UserError` for a leaf that is not an array."""
    name = jax.tree_util.keystr(path)
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        return Leaf(name, (), jnp.result_type(leaf).name)
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        generator = random.generator_name(leaf) if isinstance(leaf, jax.Array) else ""
        return Leaf(name, tuple(leaf.shape), str(dtype), generator)
    if dtype is None or np.dtype(dtype).kind in "OSUMm":
        raise _no_array(name, leaf)
    return Leaf(name, tuple(leaf.shape), np.dtype(dtype).name)


def _no_array(name: str, leaf: Any) -> UserError:
    of = f" of {leaf.dtype}" if hasattr(leaf, "dtype") else ""
    return UserError(
        f"The leaf '{name}' is a {type(leaf).__name__}{of}; a checkpoint holds only arrays of "
        "numbers and typed keys."
    )


def empty_array(leaf: Leaf) -> np.ndarray:
    """Return the numbers of an empty leaf."""
    if leaf.generator is None:
        return np.zeros(leaf.shape, jnp.dtype(leaf.dtype))
    one = jax.random.key_data(jax.random.key(0, impl=_implementation(leaf.generator)))
    return np.zeros((*leaf.shape, *one.shape), np.uint32)


def to_jax(array: np.ndarray, generator: str | None) -> Any:
    """Return a JAX array or key. A 64-bit array stays a NumPy array where JAX is set to 32 bits."""
    if generator is not None:
        return jax.random.wrap_key_data(jnp.array(array), impl=_implementation(generator))
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return array
    return jnp.array(array)


def _implementation(generator: str):
    """Return one of jaxrl's generators, or the name of one of JAX's."""
    try:
        return random.implementation(generator)
    except UserError:
        return generator


def difference(saved: list[Leaf], wanted: list[Leaf]) -> str | None:
    """Describe the first difference between two lists of leaves; None if there is none."""
    have, want = {leaf.path: leaf for leaf in saved}, {leaf.path: leaf for leaf in wanted}
    for leaf in wanted:
        if leaf.path not in have:
            return f"it lacks the leaf '{leaf.path}', {leaf}"
        found = have[leaf.path]
        if (found.shape, found.dtype) != (leaf.shape, leaf.dtype):
            return f"its leaf '{leaf.path}' is {found} instead of {leaf}"
    for leaf in saved:
        if leaf.path not in want:
            return f"it has a surplus leaf '{leaf.path}', {leaf}"
    if [leaf.path for leaf in saved] != [leaf.path for leaf in wanted]:
        return "its leaves are in another order"
    return None
