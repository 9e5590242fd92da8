"""Descriptions of observations and actions: shapes, dtypes and bounds, known before tracing."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrl.core.errors import UserError


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers `0 .. n - 1`, as int32 scalars."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> Any:
        return jnp.int32


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """A vector of integers `[len(sizes)]`; component `i` lies in `0 .. sizes[i] - 1`."""

    sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    @property
    def dtype(self) -> Any:
        return jnp.int32


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of one shape between `low` and `high` (scalars or nested tuples of that shape)."""

    low: Any
    high: Any
    shape: tuple[int, ...]
    dtype: Any = jnp.float32


Space = Any  # Discrete | MultiDiscrete | Box, or a pytree of them (dicts, tuples)


def is_space(x: Any) -> bool:
    """Return whether `x` is a single space and not a container of spaces."""
    return isinstance(x, Discrete | MultiDiscrete | Box)


def bounds(box: Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper bounds of `box`, each of the box's shape."""
    return (
        np.broadcast_to(np.asarray(box.low, box.dtype), box.shape),
        np.broadcast_to(np.asarray(box.high, box.dtype), box.shape),
    )


def example(space: Space) -> Any:
    """Return an element of `space` that is all zeros: for shapes, not a sample."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), space, is_leaf=is_space)


def sample(space: Space, key: jax.Array) -> Any:
    """Draw a random element of `space`: uniform between two bounds, exponential from a single one,
    and standard normal without bounds."""
    leaves, treedef = jax.tree.flatten(space, is_leaf=is_space)
    keys = jax.random.split(key, max(len(leaves), 1))
    return treedef.unflatten([_sample(s, k) for s, k in zip(leaves, keys, strict=False)])


def sample_legal(legal: jax.Array, key: jax.Array) -> jax.Array:
    """Draw the index of a true entry along the last axis of `legal` `[..., n]`, all equally likely:
    int32 `[...]`; 0 where no entry is true."""
    noise = jax.random.uniform(key, legal.shape, minval=0.1)
    return jnp.argmax(jnp.where(legal, noise, 0.0), axis=-1).astype(jnp.int32)


def clip(space: Space, value: Any) -> Any:
    """Clip the real numbers of `value` [..., *shape] to the bounds of their boxes."""

    def one(space, value):
        real = isinstance(space, Box) and jnp.issubdtype(value.dtype, jnp.floating)
        return jnp.clip(value, *bounds(space)) if real else value

    return jax.tree.map(one, space, value, is_leaf=is_space)


def contains(space: Space, value: Any) -> jax.Array:
    """Return whether `value` has the space's shape and dtype and is within its bounds: bool []."""
    leaves = jax.tree.leaves(
        jax.tree.map(_contains, space, value, is_leaf=is_space), is_leaf=lambda x: x is None
    )
    return jnp.all(jnp.stack([jnp.asarray(x) for x in leaves]))


def check_member(space: Space, value: Any, what: str) -> None:
    """Raise `UserError`, beginning with `what`, if `value` has another structure, shape or kind of
    number (integer, float) than `space`, or is an index that is known to be out of range. Values
    under a trace pass, and so do floats beyond their bounds: a `Box` bounds what is useful, and
    environments clip."""
    leaves, treedef = jax.tree.flatten(space, is_leaf=is_space)
    if jax.tree.structure(value) != treedef:
        raise UserError(
            f"{what} has the structure {jax.tree.structure(value)}; the space has {treedef}."
        )
    for leaf, part in zip(leaves, jax.tree.leaves(value), strict=True):
        try:
            shape, dtype = jnp.shape(part), jnp.result_type(part)
        except TypeError:
            raise UserError(f"{what} holds {part!r}; it must be an element of {leaf}.") from None
        if shape != tuple(leaf.shape) or _kind(dtype) != _kind(leaf.dtype):
            raise UserError(
                f"{what} is {dtype}{list(shape)}; it must be "
                f"{jnp.dtype(leaf.dtype)}{list(leaf.shape)}, an element of {leaf}."
            )
        sizes = {Discrete: "n", MultiDiscrete: "sizes"}.get(type(leaf))
        if sizes is None or isinstance(part, Tracer):
            continue
        number = np.asarray(part)
        if np.any(number < 0) or np.any(number >= getattr(leaf, sizes)):
            raise UserError(f"{what} is {number.tolist()}; it must be an element of {leaf}.")


def _kind(dtype: Any) -> str:
    kinds = {"integer": jnp.integer, "float": jnp.floating}  # NumPy's `kind` knows no bfloat16
    return next((k for k, v in kinds.items() if jnp.issubdtype(dtype, v)), str(dtype))


def _sample(space: Space, key: jax.Array) -> jax.Array:
    match space:
        case Discrete(n):
            return jax.random.randint(key, (), 0, n)
        case MultiDiscrete(sizes):
            return jax.random.randint(key, (len(sizes),), 0, jnp.asarray(sizes))
        case Box(shape=shape, dtype=dtype) if jnp.issubdtype(dtype, jnp.floating):
            low, high = bounds(space)
            below, above = np.isfinite(low), np.isfinite(high)
            both = below & above
            uniform = jax.random.uniform(
                key, shape, dtype, np.where(both, low, 0.0), np.where(both, high, 1.0)
            )
            if both.all():
                return uniform
            distance = jax.random.exponential(key, shape, dtype)
            return jnp.select(
                [both, below, above],
                [uniform, low + distance, high - distance],
                jax.random.normal(key, shape, dtype),
            )
        case Box(shape=shape, dtype=dtype):
            # Bounds are int32; the largest of them has no successor, so it is never drawn.
            low, high = (x.astype(np.int64) for x in bounds(space))
            info = np.iinfo(np.int32)
            low = np.clip(low, info.min, info.max - 1)
            high = np.clip(high + 1, low + 1, info.max)
            return jax.random.randint(
                key, shape, low.astype(np.int32), high.astype(np.int32)
            ).astype(dtype)
    raise TypeError(f"{space!r} is not a space; use Discrete, MultiDiscrete or Box.")


def _contains(space: Space, value: Any) -> jax.Array | bool:
    value = jnp.asarray(value)
    if value.shape != space.shape or value.dtype != jnp.dtype(space.dtype):
        return False
    match space:
        case Discrete(n):
            return (value >= 0) & (value < n)
        case MultiDiscrete(sizes):
            return jnp.all((value >= 0) & (value < jnp.asarray(sizes)))
        case _:
            low, high = bounds(space)
            return jnp.all((value >= low) & (value <= high))
