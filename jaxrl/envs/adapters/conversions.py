"""Conversions that all suites need: spaces from arrays of bounds, values of exactly a space's
dtype, and resets that return the dtypes of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxrl.core.spaces import Box, Space, bounds, is_space
from jaxrl.core.types import Tree
from jaxrl.envs.wrappers.arguments import tuples


def box(low: ArrayLike, high: ArrayLike, shape: tuple[int, ...], dtype: Any) -> Box:
    """Build a hashable `Box` with bounds of any broadcastable shape; float64 becomes float32."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)

    def hashable(bound: ArrayLike) -> Any:
        full = np.broadcast_to(np.asarray(bound), shape)
        if full.size and (full == full.flat[0]).all():
            return full.flat[0].item()
        return tuples(full.tolist())

    return Box(hashable(low), hashable(high), tuple(shape), dtype)


def unbounded_space(shapes: Tree) -> Space:
    """Build a space for arrays of unknown values; bools lie between 0 and 1."""

    def one(x: Any) -> Box:
        dtype = jnp.dtype(x.dtype)
        if jnp.issubdtype(dtype, jnp.bool_):
            return Box(0, 1, x.shape, dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            info = jnp.iinfo(dtype)
            return Box(int(info.min), int(info.max), x.shape, dtype)
        return Box(-np.inf, np.inf, x.shape, dtype)

    return jax.tree.map(one, shapes)


def cast(space: Space, value: Tree) -> Tree:
    """Convert `value` to arrays of the dtypes of `space`."""
    return jax.tree.map(lambda s, x: jnp.asarray(x, s.dtype), space, value, is_leaf=is_space)


def clip(space: Space, action: Tree) -> Tree:
    """Clip `action` to the boxes of `space`, since a policy's normal distribution has no bounds."""

    def one(s: Any, x: Any) -> Any:
        return jnp.clip(x, *bounds(s)) if isinstance(s, Box) else x

    return jax.tree.map(one, space, action, is_leaf=is_space)


def stable_shapes(reset: Callable[[], Tree], step: Callable[[Tree], Tree]) -> Tree:
    """Return shapes and dtypes of the state that `step` preserves: suites start from Python
    numbers, whose dtype only a step decides. `reset` and `step` are only traced."""
    shapes = jax.eval_shape(reset)
    for _ in range(3):
        after = jax.eval_shape(step, shapes)
        if jax.tree.leaves(after) == jax.tree.leaves(shapes):
            break
        shapes = after
    return shapes


def cast_like(shapes: Tree, state: Tree) -> Tree:
    """Convert `state` to the dtypes of `shapes`; typed keys are left as they are."""

    def one(shape: Any, x: Any) -> Any:
        if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
            return x
        return jax.lax.convert_element_type(x, shape.dtype)

    return jax.tree.map(one, shapes, state)
