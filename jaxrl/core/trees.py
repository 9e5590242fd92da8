"""Operations on whole pytrees that `jax.tree` lacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.shared import is_shared
from jaxrl.core.types import Array, Tree


def where(mask: Array, a: Tree, b: Tree) -> Tree:
    """Select `a` where `mask`, else `b`, leaf by leaf, for a `mask` over the leading axes of every
    leaf. Shared parts are the same in both and stay."""

    def choose(x, y):
        if is_shared(x):
            return x
        return jnp.where(mask.reshape(mask.shape + (1,) * (jnp.ndim(x) - mask.ndim)), x, y)

    return jax.tree.map(choose, a, b, is_leaf=is_shared)


def all_finite(tree: Tree) -> Array:
    """Return whether no inexact leaf of `tree` holds a NaN or an infinity: bool []."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    return (
        jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves])) if leaves else jnp.bool_(1)
    )


def strong(tree: Tree) -> Tree:
    """Convert leaves to arrays of the same dtype that a scan can carry, since a Python number is
    only weakly typed."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def zeros(shapes: Tree) -> Tree:
    """Make zeros of the given shapes and dtypes, as `jax.eval_shape` returns them."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def check_rows(tree: Tree, rows: int, what: str) -> None:
    """Raise `UserError` if a leaf of `tree` does not have the shape [rows, ...], as `what` has."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.shape(leaf)[:1] != (rows,):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise UserError(
                f"'{name}' has the shape {list(jnp.shape(leaf))}; it must have {rows} rows, as "
                f"{what} have."
            )
