"""Parts of a program that XLA must compute once, or only when they are due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.custom_batching
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.types import Array, Tree


def isolate(always: Array, function: Callable[..., Tree], *arguments: Any) -> Tree:
    """Return `function(*arguments)`, compiled on a CPU as a part of its own.

    XLA's fusion on a CPU computes a value again inside every array that is made from it (in a
    cheetah, the cosine of one joint dozens of times). Nothing is fused into a branch, so this is a
    branch that is always taken, which XLA cannot know. On other devices, where a branch costs more
    than it saves, it is a plain call.

    always: bool [], true because of a number that the program gets at run time, such as the index
        of a loop (`index >= 0`); true for every member under `vmap`.
    """
    if jax.default_backend() != "cpu":
        return function(*arguments)
    generators = {}  # of keys in the result, by place, since the other branch has no keys to give

    def data(*arguments):
        leaves, treedef = jax.tree.flatten(function(*arguments))
        for place, leaf in enumerate(leaves):
            if jnp.issubdtype(jax.dtypes.result_type(leaf), jax.dtypes.prng_key):
                generators[place] = jax.random.key_impl(leaf)
                leaves[place] = jax.random.key_data(leaf)
        return treedef.unflatten(leaves)

    data = jax.jit(data, inline=True)  # traced once, for its shapes and as a branch
    shapes = jax.eval_shape(data, *arguments)
    always_for_all = ~_any_member(jnp.logical_not(always))
    result = jax.lax.cond(always_for_all, data, lambda *_: trees.zeros(shapes), *arguments)
    leaves, treedef = jax.tree.flatten(result)
    for place, generator in generators.items():
        leaves[place] = jax.random.wrap_key_data(leaves[place], impl=generator)
    return treedef.unflatten(leaves)


def where_due(due: Array, function: Callable[[], Tree], otherwise: Tree) -> Tree:
    """Return `function()` if `due` (bool []), else `otherwise`, a tree of the same shapes.

    Under `vmap` the function is skipped unless some member is due. (A branch that each member chose
    for itself would become a select, which computes both sides.)
    """
    chosen = lambda: trees.where(due, function(), otherwise)
    return jax.lax.cond(_any_member(due), chosen, lambda: otherwise)


@jax.custom_batching.custom_vmap
def _any_member(due: Array) -> Array:
    """Return whether `due` is true for any member under `vmap`: one scalar for all of them."""
    return due


@_any_member.def_vmap
def _any_of_these(size, batched, due):
    return _any_member(due.any()), False
