"""Settings of algorithms: the values they may have, and which of them are arrays.

A Config is a frozen dataclass whose fields are declared together with their ranges. A `static`
field is part of the program (shapes, anything that Python branches on). A `hyper` field becomes a
float32 scalar, which `init(key, hyper)` puts into the state under an attribute named `hyper`. It is
never compiled in, so a sweep over it is `jax.vmap` over `init`, and another value compiles nothing.
`check` refuses a Config with a value out of its range.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import settings
from jaxrl.core.errors import UserError, nearest
from jaxrl.core.types import Hyper, Tree

# Ceilings that only a slip of the finger exceeds, since no memory holds as much.
WIDE = 2**16  # units of a layer; its weights grow with their square
MANY = 2**24  # things side by side: environments, members, rows of a batch
COUNT = 2**31 - 1  # any other whole number, since JAX counts with 32 bits


# ------------------------------------------------------------------------------- ranges


@dataclasses.dataclass(frozen=True)
class Range:
    """Values that a setting may have, or that each entry of a list may have; the field's metadata
    holds it as `range`."""

    low: float | None = None
    """The least value."""
    high: float | None = None
    """The largest value; a value may be infinite only if this is."""
    above: float | None = None
    """A lower bound that is not allowed itself."""
    below: float | None = None
    """An upper bound that is not allowed itself."""
    choices: tuple[str, ...] | None = None
    """The names that a text may be."""
    least_length: int = 0
    """The least number of entries of a list."""
    log: bool = False
    """True if values differ by factors, as learning rates do: a sweep over a range of them is
    spaced geometrically."""


def hyper(
    default: float,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    log: bool = False,
) -> Any:
    """Declare a Config field that becomes an array in the state, with bounds and scale as in
    `Range`."""
    within = Range(low, high, above, below, log=log)
    return dataclasses.field(default=default, metadata={"hyper": True, "range": within})


def static(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[str] | None = None,
    least_length: int = 0,
) -> Any:
    """Declare a Config field that is part of the program, with bounds as in `Range`. A whole number
    is at most `COUNT` unless bounded otherwise. None is allowed where it is the default; `low` then
    says by its type whether other values are whole numbers."""
    if _is_whole(default, low) and high is None and below is None:
        high = COUNT
    names = None if choices is None else tuple(choices)
    within = Range(low, high, above, below, names, least_length)
    return dataclasses.field(default=default, metadata={"range": within})


def _is_whole(default: Any, low: float | None) -> bool:
    """Return whether values of a static setting are whole numbers."""
    return isinstance(default, int) or (default is None and isinstance(low, int))


def check(config: Any, prefix: str = "") -> None:
    """Raise `UserError` for the first setting of `config`, or of a Config in it, that is out of its
    range. The message begins with the setting's name after `prefix`.

    A number must be in its range as a 32-bit float too. NaN never is, infinity only where `high`
    is infinite. Arrays pass, traced or not, since their values may be unknown.
    """
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check(value, f"{name}.")
        elif "range" in field.metadata and (value is not None or field.default is not None):
            wrong = _wrong(value, field.metadata["range"], field.default)
            if wrong:
                raise UserError(f"{name} is {_text(value)}; {wrong}.")


def _wrong(value: Any, within: Range, default: Any) -> str | None:
    """Return a clause that says what is wrong with `value`; None if nothing is."""
    if not isinstance(default, tuple):
        need = _must_be(value, within, whole=_is_whole(default, within.low))
        return need and f"it must be {need}"
    if not isinstance(value, tuple | list):
        return "it must be a list"
    least = within.least_length
    if len(value) < least:
        return f"it must have at least {'one entry' if least == 1 else f'{least} entries'}"
    needs = (_must_be(entry, within, whole=False) for entry in value)
    return next((f"each entry must be {need}" for need in needs if need), None)


def _must_be(value: Any, within: Range, whole: bool) -> str | None:
    """Return what `value`, which is no list, must be and is not; None if it is in its range."""
    if within.choices is not None:
        return None if value in within.choices else _one_of(within.choices, value)
    if isinstance(value, jax.Array | np.ndarray):
        return None
    kind: type = numbers.Integral if whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind) or value != value:
        return "a whole number" if whole else "a number"
    if not _inside(value, within):
        return _broken_bounds(within, value)
    if whole or value == within.high:
        return None
    if value in (math.inf, -math.inf):
        return "finite"
    rounded = _float32(value)
    fits = math.isfinite(rounded) and _inside(rounded, within, _float32)
    return None if fits else "a number that a 32-bit float holds"


def _inside(
    value: float, within: Range, rounded: Callable[[float], float] = lambda bound: bound
) -> bool:
    return (
        (within.low is None or value >= rounded(within.low))
        and (within.high is None or value <= rounded(within.high))
        and (within.above is None or value > rounded(within.above))
        and (within.below is None or value < rounded(within.below))
    )


def _float32(value: float) -> float:
    """Round to a 32-bit float; infinite beyond its range."""
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    except OverflowError:  # a whole number that is too large even for 64 bits
        return math.inf


def _broken_bounds(within: Range, value: float) -> str:
    """Describe the bounds that `value` breaks; a mere ceiling only if it is exceeded."""
    if within.high is not None and within.high >= WIDE and value > within.high:
        return f"at most {within.high}"
    return bounds_text(within)


def bounds_text(within: Range) -> str:
    """Write bounds as `between 0 and 1`, `above 0 and below 1`, `at least 1`. Ceilings that only a
    slip of the finger exceeds are left out; "" if nothing is left."""
    if within.high is not None and within.high >= WIDE:
        within = dataclasses.replace(within, high=None)
    if within.low is not None and within.high is not None:
        return f"between {within.low} and {within.high}"
    bounds = {
        "at least": within.low,
        "above": within.above,
        "at most": within.high,
        "below": within.below,
    }
    return " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)


def _one_of(choices: tuple[str, ...], name: Any) -> str:
    close = nearest(str(name), choices)
    return f"one of {', '.join(choices)}" + (f" (did you mean '{close}'?)" if close else "")


def _text(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int):
        return reprlib.repr(value)  # hundreds of digits are shortened
    return repr(list(value) if isinstance(value, tuple) else value)


# ------------------------------------------------------------------------------- arrays


def hypers(config: Any) -> dict[str, np.ndarray]:
    """Return the `hyper` fields of a Config and its groups, by dotted names, as float32 scalars.
    Raises `UserError` as `check` does, so that building an algorithm checks its settings."""
    check(config)
    return {
        name: np.asarray(value, np.float32)
        for name, field, value in settings.walk(config)
        if field.metadata.get("hyper")
    }


def log_scaled(config: Any) -> set[str]:
    """Return the dotted names of the settings of a Config and its groups whose `Range` is `log`."""
    ranges = ((name, field.metadata.get("range")) for name, field, _ in settings.walk(config))
    return {name for name, within in ranges if within and within.log}


def _names(config: Any) -> list[str]:
    return [name for name, field, _ in settings.walk(config) if field.metadata.get("hyper")]


def merge(*parts: Hyper) -> dict[str, Any]:
    """Return the hyperparameters of all parts. Raises `UserError` if two parts share a name."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name in merged:
                raise UserError(f"Two parts of one algorithm call a hyperparameter '{name}'.")
            merged[name] = value
    return merged


def select(config: Any, hyper: Hyper) -> dict[str, Any]:
    """Return the values in `hyper` that `config` declares, as arrays."""
    return {name: jnp.asarray(hyper[name]) for name in _names(config)}


def override(defaults: Hyper, changes: Hyper | None) -> dict[str, Any]:
    """Return `defaults` with `changes`, each in the dtype of its default: an integer becomes a
    float, and no Python type compiles anew. Names may be shortened as in `settings.full_name`,
    which raises `UserError` for an unknown name."""
    values = dict(defaults)
    for name, value in (changes or {}).items():
        name = settings.full_name(name, defaults)
        values[name] = jnp.asarray(value, jnp.result_type(defaults[name]))
    return values


def replace_hyper(state: Tree, changes: Hyper) -> Tree:
    """Return `state` with the named hyperparameters set wherever they are stored.

    A change covers the leading axes of the stored value and is broadcast over the others: a value
    for each member of a population reaches all copies inside that member. Names may be shortened as
    in `settings.full_name`, which raises `UserError` for a name that is stored nowhere.
    """
    known = read_hyper(state)
    changes = {settings.full_name(name, known): value for name, value in changes.items()}

    def replace(path: tuple, leaf: Any) -> Any:
        name = hyper_name(path)
        if name is None or name not in changes:
            return leaf
        change = jnp.asarray(changes[name], leaf.dtype)
        inner = (1,) * (jnp.ndim(leaf) - change.ndim)
        return jnp.broadcast_to(change.reshape(change.shape + inner), leaf.shape)

    return jax.tree_util.tree_map_with_path(replace, state)


def read_hyper(state: Tree) -> dict[str, Any]:
    """Return all hyperparameters that are stored in `state`, by name."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {name: leaf for path, leaf in leaves if (name := hyper_name(path)) is not None}


def without_hyper(state: Tree) -> dict[str, Any]:
    """Return all leaves of `state` but hyperparameters, by path (`jax.tree_util.keystr`)."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): x for path, x in leaves if hyper_name(path) is None}


def rename_hyper(state: Tree, name: Callable[[str], str]) -> Tree:
    """Return `state` with its hyperparameters renamed wherever they are stored: `name` maps an old
    name to the new one."""
    holds = lambda x: isinstance(getattr(x, "hyper", None), Mapping)

    def rename(x: Any) -> Any:
        if not holds(x):
            return x
        parts = {f.name: rename_hyper(getattr(x, f.name), name) for f in dataclasses.fields(x)}
        parts["hyper"] = {name(old): value for old, value in x.hyper.items()}
        return dataclasses.replace(x, **parts)

    return jax.tree.map(rename, state, is_leaf=holds)


def hyper_name(path: tuple) -> str | None:
    """Return the name of the hyperparameter at a path of a state; None if there is none."""
    if len(path) >= 2 and getattr(path[-2], "name", None) == "hyper":
        return getattr(path[-1], "key", None)
    return None
