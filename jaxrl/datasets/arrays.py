"""Checks of arrays of unknown origin: their numbers, dtypes and shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Tree


def numbers(values: Any, what: str) -> np.ndarray:
    """Return `values` as an array of real numbers. Raises `UserError` if they are not numbers."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        raise UserError(f"The {what} is not an array.") from None
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise UserError(f"The {what} is an array of {array.dtype}; it must be one of real numbers.")
    return array


def check_finite(values: np.ndarray, given: np.ndarray, what: str) -> None:
    """Raise `UserError` with the first of the numbers `given` that is not finite as `values`."""
    if jnp.issubdtype(values.dtype, jnp.floating):
        refuse(~np.isfinite(values), given, what, f"it must be finite as {values.dtype}")


def refuse(wrong: np.ndarray, values: np.ndarray, what: str, right: str) -> None:
    """Raise `UserError` with the first of `values` that is `wrong`, its row, and what is right."""
    if wrong.any():
        row, *entry = (int(i) for i in np.argwhere(wrong)[0])
        place = f"row {row}, entry {entry}" if entry else f"row {row}"
        raise UserError(f"The {what} is {values[(row, *entry)]} in {place}; {right}.")


def cast(values: Any, dtype: Any, what: str) -> np.ndarray:
    """Convert `values` to `dtype`, which may round them but not change them otherwise. Raises
    `UserError` for numbers that are not finite then, and for integers that would change."""
    values = numbers(values, what)
    real = jnp.issubdtype(dtype, jnp.floating)
    if not real and jnp.issubdtype(values.dtype, jnp.floating):
        raise UserError(f"The {what} is {values.dtype}; it must be {np.dtype(dtype)}.")
    with np.errstate(over="ignore"):
        found = values.astype(dtype, copy=False)
    check_finite(found, values, what)
    if not real and found is not values:
        refuse(found != values, values, what, f"it must be {np.dtype(dtype)}")
    return found


def form(tree: Tree, skip: int) -> Any:
    """Return the structure of a tree, and the shapes of its leaves without `skip` leading axes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(x)[skip:] for x in leaves]


def shapes(tree: Tree, skip: int) -> str:
    """Return the shapes of a tree for a message, without `skip` leading axes."""
    return str(jax.tree.map(lambda x: list(np.shape(x)[skip:]), tree))
