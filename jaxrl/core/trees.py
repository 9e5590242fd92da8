"""Operations on whole pytrees that `jax.tree` lacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.shared import is_shared
from jaxrl.core.types import Array, Tree


def where(mask: Array, a: Tree, b: Tree) -> Tree:
    """Leaf by leaf `a` where `mask`, else `b`; `mask` covers the leading axes of every leaf. What
    is `Shared` is the same in both."""

    def choose(x, y):
        if is_shared(x):
            return x
        return jnp.where(mask.reshape(mask.shape + (1,) * (jnp.ndim(x) - mask.ndim)), x, y)

    return jax.tree.map(choose, a, b, is_leaf=is_shared)


def all_finite(tree: Tree) -> Array:
    """Whether no inexact leaf of `tree` holds a NaN or an infinity (bool scalar)."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    return (
        jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves])) if leaves else jnp.bool_(1)
    )


def strong(tree: Tree) -> Tree:
    """Arrays of the same dtype that a scan can carry: a Python number is typed only weakly."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def zeros(shapes: Tree) -> Tree:
    """Zeros of the given shapes and dtypes (as returned by `jax.eval_shape`)."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def check_rows(tree: Tree, rows: int, what: str) -> None:
    """Raises `UserError` where a leaf of `tree` is not of the shape [rows, ...], as `what` is."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.shape(leaf)[:1] != (rows,):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise UserError(
                f"'{name}' has the shape {list(jnp.shape(leaf))}; it must have {rows} rows, as "
                f"{what} have."
            )
