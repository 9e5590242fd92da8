"""Parts of a program that XLA must not compute more than once, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.custom_batching
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.types import Array, Tree


def staged(always: Array, function: Callable[..., Tree], *arguments: Any) -> Tree:
    """`function(*arguments)`, compiled as a part of its own on a CPU.

    XLA's fusion there computes a value again inside every array that is made from it (of a cheetah
    it took the cosine of one joint dozens of times). Nothing can be fused into a branch, so this
    is one that is always taken, which XLA cannot know. On other devices, where a branch costs more
    than it saves, it is a plain call.

    always: bool scalar that is true, by a number that the program gets at run time, such as the
        index of a loop (`index >= 0`), of every member under `vmap`.
    """
    if jax.default_backend() != "cpu":
        return function(*arguments)
    generators = {}  # of the keys in the result, by their place: the other branch has none to give

    def data(*arguments):
        leaves, treedef = jax.tree.flatten(function(*arguments))
        for place, leaf in enumerate(leaves):
            if jnp.issubdtype(jax.dtypes.result_type(leaf), jax.dtypes.prng_key):
                generators[place] = jax.random.key_impl(leaf)
                leaves[place] = jax.random.key_data(leaf)
        return treedef.unflatten(leaves)

    data = jax.jit(data, inline=True)  # traced once, for its shapes and as a branch
    shapes = jax.eval_shape(data, *arguments)
    all_of_them = ~_of_any(jnp.logical_not(always))
    result = jax.lax.cond(all_of_them, data, lambda *_: trees.zeros(shapes), *arguments)
    leaves, treedef = jax.tree.flatten(result)
    for place, generator in generators.items():
        leaves[place] = jax.random.wrap_key_data(leaves[place], impl=generator)
    return treedef.unflatten(leaves)


def where_due(due: Array, function: Callable[[], Tree], otherwise: Tree) -> Tree:
    """`function()` where `due` (bool scalar), else `otherwise`, a tree of the same shapes.

    Under `vmap` nothing is computed unless a member is due: a branch that each of them chose would
    be a select, of both.
    """
    chosen = lambda: trees.where(due, function(), otherwise)
    return jax.lax.cond(_of_any(due), chosen, lambda: otherwise)


@jax.custom_batching.custom_vmap
def _of_any(due: Array) -> Array:
    """Whether any member under `vmap` is: one scalar for all of them."""
    return due


@_of_any.def_vmap
def _of_some(size, batched, due):
    return _of_any(due.any()), False
