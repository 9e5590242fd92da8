"""Checks of the arguments of wrappers; an argument that cannot work is one sentence of error."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment


def positive_integer(env: Environment, what: str, value: Any) -> int:
    """Return `value` as an int. Raises `UserError` unless it is a positive integer."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise UserError(f"The {what} of '{env.name}' is {value!r}; it must be a positive integer.")
    return number


def number(
    env: Environment, what: str, value: Any, low: float = 0.0, high: float = math.inf
) -> float:
    """Return `value` as a float. Raises `UserError` unless it is a finite number from `low` to
    `high`."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not low <= float(value) <= high:
        raise UserError(f"The {what} of '{env.name}' is {value!r}; it must be {_range(low, high)}.")
    return float(value)


def numbers_of(
    env: Environment,
    what: str,
    value: Any,
    shape: tuple[int, ...],
    low: float = 0.0,
    high: float = math.inf,
) -> Any:
    """Return `value` as a float, or as nested tuples of floats, which can be keys of a cache.
    Raises `UserError` unless it is one finite number from `low` to `high` or an array of such
    numbers that broadcasts to `shape`."""
    try:
        array = np.asarray(value)
        np.broadcast_to(array, shape)
        fits = array.dtype.kind in "iuf" and bool(
            np.all(np.isfinite(array) & (array >= low) & (array <= high))
        )
    except ValueError:
        fits = False
    if not fits:
        raise UserError(
            f"The {what} of '{env.name}' is {value!r}; it must be {_range(low, high)}, or an array "
            f"of such numbers for the shape {shape}."
        )
    return tuples(np.asarray(value, np.float64).tolist())


def as_param(value: Any) -> Any:
    """Convert the result of `numbers_of` to a leaf of params: a float or a NumPy array."""
    return np.asarray(value, np.float32) if isinstance(value, tuple) else value


def tuples(value: Any) -> Any:
    """Convert nested lists to nested tuples, which can be hashed."""
    return tuple(tuples(x) for x in value) if isinstance(value, list) else value


def _range(low: float, high: float) -> str:
    if high < math.inf:
        return f"a number from {low:g} to {high:g}"
    return f"a finite number of at least {low:g}" if low > -math.inf else "a finite number"
