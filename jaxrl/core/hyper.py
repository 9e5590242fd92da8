"""Settings of algorithms: which values they may have, and which of them are arrays.

A Config is a frozen dataclass, each field of which is declared together with its range. One that is
declared by `static` is part of the program (shapes, anything Python branches on); one by `hyper`
becomes a float32 scalar that `init(key, hyper)` puts into the state, under an attribute named
`hyper`, and is never compiled in: sweeping it is `jax.vmap` over `init`, and changing it compiles
nothing. `check` refuses a Config whose values are not in their ranges.
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

# Ceilings that only a slip of the finger exceeds; no memory holds as much.
WIDE = 2**16  # units of a layer, whose weights are as many times as many
MANY = 2**24  # of what lies or plays side by side: environments, members, rows of a batch
COUNT = 2**31 - 1  # any other whole number: JAX counts with 32 bits


# ------------------------------------------------------------------------------- ranges


@dataclasses.dataclass(frozen=True)
class Range:
    """What a setting may be, or each entry of one that is a list; `range` in its field's metadata.

    low, high: the least and the largest value; only where `high` is infinite a value may be.
    above, below: bounds that are not allowed themselves.
    choices: the names that a text may be.
    least_length: the number of entries that a list has at least.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] | None = None
    least_length: int = 0


def hyper(
    default: float,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A Config field whose value becomes an array in the state; its bounds are those of `Range`."""
    within = Range(low, high, above, below)
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
    """A Config field that is part of the program; its bounds are those of `Range`. A whole number
    is at most `COUNT` unless something else is said. None is allowed where it is the default."""
    if isinstance(default, int) and high is None and below is None:
        high = COUNT
    names = None if choices is None else tuple(choices)
    within = Range(low, high, above, below, names, least_length)
    return dataclasses.field(default=default, metadata={"range": within})


def check(config: Any, prefix: str = "") -> None:
    """Raises `UserError` for the first setting of `config`, or of a Config in it, that is not in
    its range, by its name after `prefix`.

    Numbers must be so as 32-bit floats too. NaN never is, and infinity only where `high` is.
    Arrays, traced ones among them, are let through: their values may not be known.
    """
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check(value, f"{name}.")
        elif "range" in field.metadata and (value is not None or field.default is not None):
            wrong = _wrong(value, field.metadata["range"], field.default)
            if wrong:
                raise UserError(f"{name} is {_shown(value)}; {wrong}.")


def _wrong(value: Any, within: Range, default: Any) -> str | None:
    """What would be right instead of `value`, as a clause; None where it is right."""
    if not isinstance(default, tuple):
        need = _must_be(value, within, whole=isinstance(default, int))
        return need and f"it must be {need}"
    if not isinstance(value, tuple | list):
        return "it must be a list"
    least = within.least_length
    if len(value) < least:
        return f"it must have at least {'one entry' if least == 1 else f'{least} entries'}"
    needs = (_must_be(entry, within, whole=False) for entry in value)
    return next((f"each entry must be {need}" for need in needs if need), None)


def _must_be(value: Any, within: Range, whole: bool) -> str | None:
    """What `value`, which is no list, must be and is not; None where it is in its range."""
    if within.choices is not None:
        return None if value in within.choices else _one_of(within.choices, value)
    if isinstance(value, jax.Array | np.ndarray):
        return None
    kind: type = numbers.Integral if whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind) or value != value:
        return "a whole number" if whole else "a number"
    if not _inside(value, within):
        return _described(within, value)
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
    """As a 32-bit float; infinite where it has no room."""
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    except OverflowError:  # a whole number that is too large even for 64 bits
        return math.inf


def _described(within: Range, value: float) -> str:
    """The bounds of a number that is not within. A ceiling concerns only who exceeds it."""
    if within.high is not None and within.high >= WIDE and value > within.high:
        return f"at most {within.high}"
    return bounds_text(within)


def bounds_text(within: Range) -> str:
    """`between 0 and 1`, `above 0 and below 1`, `at least 1`; "" for no bounds but such ceilings as
    only a slip of the finger exceeds."""
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


def _shown(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int):
        return reprlib.repr(value)  # of hundreds of digits only the first and the last
    return repr(list(value) if isinstance(value, tuple) else value)


# ------------------------------------------------------------------------------- arrays


def hypers(config: Any) -> dict[str, np.ndarray]:
    """The `hyper` fields of a Config and its groups, by dotted names, as float32 scalars. Raises
    `UserError` as `check` does, so that whoever builds an algorithm has its settings checked."""
    check(config)
    return {
        name: np.asarray(value, np.float32)
        for name, field, value in settings.walk(config)
        if field.metadata.get("hyper")
    }


def _names(config: Any) -> list[str]:
    return [name for name, field, _ in settings.walk(config) if field.metadata.get("hyper")]


def merge(*parts: Hyper) -> dict[str, Any]:
    """The union of the hyperparameters of several parts. Raises where two share a name."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name in merged:
                raise UserError(f"Two parts of one algorithm call a hyperparameter '{name}'.")
            merged[name] = value
    return merged


def select(config: Any, hyper: Hyper) -> dict[str, Any]:
    """Of all values in `hyper`, those that `config` declares, as arrays."""
    return {name: jnp.asarray(hyper[name]) for name in _names(config)}


def override(defaults: Hyper, changes: Hyper | None) -> dict[str, Any]:
    """`defaults` with `changes`, which get the default's dtype: an integer becomes a float, and no
    Python type compiles anew. A unique ending of a name will do. Raises `UserError` for a name that
    has no default or may mean several."""
    values = dict(defaults)
    for name, value in (changes or {}).items():
        name = settings.full_name(name, defaults)
        values[name] = jnp.asarray(value, jnp.result_type(defaults[name]))
    return values


def replace_hyper(state: Tree, changes: Hyper) -> Tree:
    """`state` with the named hyperparameters set wherever they are stored.

    A change covers the leading axes of what is stored (a value for each member of a population,
    whatever copies a member has inside) and is broadcast over the others. A unique ending of a
    name will do. Raises `UserError` for a name that is stored nowhere or may mean several.
    """
    known = read_hyper(state)
    changes = {settings.full_name(name, known): value for name, value in changes.items()}

    def replace(path: tuple, leaf: Any) -> Any:
        name = _hyper_name(path)
        if name is None or name not in changes:
            return leaf
        change = jnp.asarray(changes[name], leaf.dtype)
        inner = (1,) * (jnp.ndim(leaf) - change.ndim)
        return jnp.broadcast_to(change.reshape(change.shape + inner), leaf.shape)

    return jax.tree_util.tree_map_with_path(replace, state)


def read_hyper(state: Tree) -> dict[str, Any]:
    """All hyperparameters that are stored in `state`, by name."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {name: leaf for path, leaf in leaves if (name := _hyper_name(path)) is not None}


def without_hyper(state: Tree) -> dict[str, Any]:
    """All other leaves of `state`, by their paths as `jax.tree_util.keystr` writes them."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): x for path, x in leaves if _hyper_name(path) is None}


def rename_hyper(state: Tree, name: Callable[[str], str]) -> Tree:
    """`state`, whose hyperparameters are called `name(old name)` wherever they are stored."""
    holds = lambda x: isinstance(getattr(x, "hyper", None), Mapping)

    def rename(x: Any) -> Any:
        if not holds(x):
            return x
        parts = {f.name: rename_hyper(getattr(x, f.name), name) for f in dataclasses.fields(x)}
        parts["hyper"] = {name(old): value for old, value in x.hyper.items()}
        return dataclasses.replace(x, **parts)

    return jax.tree.map(rename, state, is_leaf=holds)


def _hyper_name(path: tuple) -> str | None:
    if len(path) >= 2 and getattr(path[-2], "name", None) == "hyper":
        return getattr(path[-1], "key", None)
    return None
