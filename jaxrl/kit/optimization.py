"""One gradient step with traced hyperparameters, and gradients over batches beyond the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Tree

LARGE = 2**14  # numbers, from which on a copy of a leaf takes longer than a kernel of its own


def clip_gradient(gradient: Tree, max_norm: Array | float) -> tuple[Tree, Array]:
    """`gradient` scaled down to a global norm of at most `max_norm`, and its norm before."""
    norm = optax.tree.norm(gradient)
    # Both operands are selected first: the gradient of inf / norm would be NaN in a meta-gradient.
    longer = norm > max_norm
    scale = jnp.where(longer, max_norm, 1.0) / jnp.where(longer, norm, 1.0)
    return jax.tree.map(lambda g: g * scale, gradient), norm


def apply_step(
    optimizer: optax.GradientTransformation,
    gradient: Tree,
    optimizer_state: Tree,
    params: Tree,
    learning_rate: Array,
) -> tuple[Tree, Tree]:
    """Return params - learning_rate * optimizer(gradient), and the optimizer's state."""
    updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
    params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
    return params, optimizer_state


def descend(
    optimizer: optax.GradientTransformation,
    gradient: Tree,
    optimizer_state: Tree,
    params: Tree,
    learning_rate: Array,
    max_norm: Array | float = jnp.inf,
) -> tuple[Tree, Tree, Array]:
    """Clip the gradient and take a step along it. Returns params, optimizer state, and the norm
    before clipping."""
    gradient, norm = clip_gradient(gradient, max_norm)
    return *apply_step(optimizer, gradient, optimizer_state, params, learning_rate), norm


def as_one(tree: Tree) -> Array:
    """Concatenate all leaves into one vector."""
    return ravel_pytree(tree)[0]


def norm(tree: Tree) -> Array:
    """The root of the sum of the squares of all leaves: of the small ones as one vector, so that
    one reduction is compiled for them and not one for each, and of the large ones without a copy.
    """
    leaves = jax.tree.leaves(tree)
    small = as_one([leaf for leaf in leaves if leaf.size < LARGE])
    large = [leaf for leaf in leaves if leaf.size >= LARGE]
    return optax.tree.norm([small, *large])


def accumulated_gradient(
    loss: Callable[..., tuple[Array, Any]],
    params: Tree,
    data: Tree,
    axis: int,
    rows: int,
    used: Array | None = None,
) -> tuple[Tree, Any]:
    """The gradient and the auxiliary output of `loss(params, data, number)`, both means over
    `data`'s `axis`, computed on at most `rows` of it at a time (on all at once if `rows` is 0):
    what fits the processor's cache is faster. Exact up to rounding where `loss` is a mean of rows.

    `number` is that of a chunk, so that what is drawn differs from one to the next; None where all
    is computed at once.

    used: int32 [], number of leading rows that count; the others add 0 to the means. What lies
        wholly beyond them is not computed. None: all.

    Raises `UserError` if `axis` is longer than `rows` and not a multiple of it.
    """
    gradient = jax.grad(loss, has_aux=True)
    size = jax.tree.leaves(data)[0].shape[axis]
    if rows == 0 or size <= rows:
        return gradient(params, data, None)
    if size % rows:
        raise UserError(f"A minibatch of {size} rows does not split into chunks of {rows}.")
    chunks = size // rows

    def split(x):
        x = x.reshape(*x.shape[:axis], chunks, rows, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    def add(total, number, chunk):
        return jax.tree.map(jnp.add, total, gradient(params, chunk, number))

    pieces = jax.tree.map(split, data)
    piece = lambda i: jax.tree.map(lambda x: x[i], pieces)
    total = trees.zeros(jax.eval_shape(gradient, params, piece(0), jnp.int32(0)))
    if used is None:
        numbered = jnp.arange(chunks), pieces
        total, _ = jax.lax.scan(lambda total, item: (add(total, *item), None), total, numbered)
    else:
        count = -(-used // rows)
        total = jax.lax.fori_loop(0, count, lambda i, total: add(total, i, piece(i)), total)
    return jax.tree.map(lambda x: x / chunks, total)
