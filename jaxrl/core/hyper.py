"""Hyper-parameters that are arrays: declared in a Config, carried in the state, never compiled in.

A Config is a frozen dataclass. A plain field is static (shapes, anything Python branches on); a
field declared by `hyper` becomes a float32 scalar that `init(key, hyper)` puts into the state,
under an attribute named `hyper`. Sweeping one is `jax.vmap` over `init`; changing one compiles
nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.settings import walk
from jaxrl.core.types import Hyper, Tree


def hyper(default: float, **limits: Any) -> Any:
    """A Config field whose value becomes an array in the state."""
    return dataclasses.field(default=default, metadata={"hyper": True, **limits})


def static(default: Any, **limits: Any) -> Any:
    return dataclasses.field(default=default, metadata=limits)


def check(config: Any, prefix: str = "") -> None:
    pass


def hypers(config: Any) -> dict[str, np.ndarray]:
    """The `hyper` fields of a Config as float32 scalars. Raises `UserError` where one is NaN."""
    values = {
        name: np.float32(value)
        for name, field, value in walk(config)
        if field.metadata.get("hyper")
    }
    for name, value in values.items():
        if np.isnan(value):
            raise UserError(f"{name} is NaN; it must be a number.")
    return {name: np.asarray(value) for name, value in values.items()}


def merge(*parts: Hyper) -> dict[str, Any]:
    """The union of the hyper-parameters of several parts. Raises where two share a name."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name in merged:
                raise UserError(f"Two parts of one algorithm call a hyper-parameter '{name}'.")
            merged[name] = value
    return merged


def select(config: Any, hyper: Hyper) -> dict[str, Any]:
    """Of all values in `hyper`, those that `config` declares, as arrays."""
    return {name: jnp.asarray(hyper[name]) for name in hypers(config)}


def override(defaults: Hyper, changes: Hyper | None) -> dict[str, Any]:
    """`defaults` with `changes`, which get the default's dtype: an integer becomes a float, and no
    Python type compiles anew. Raises `UserError` for a name that has no default."""
    values = dict(defaults)
    for name, value in (changes or {}).items():
        if name not in defaults:
            raise unknown("hyper-parameter", name, defaults)
        values[name] = jnp.asarray(value, jnp.result_type(defaults[name]))
    return values


def replace_hyper(state: Tree, changes: Hyper) -> Tree:
    """`state` with the named hyper-parameters set wherever they are stored.

    A change covers the leading axes of what is stored (a value for each member of a population,
    whatever copies a member has inside) and is broadcast over the others. Raises `UserError` for a
    name that is stored nowhere.
    """
    found = set()

    def replace(path: tuple, leaf: Any) -> Any:
        name = _hyper_name(path)
        if name is None or name not in changes:
            return leaf
        found.add(name)
        change = jnp.asarray(changes[name], leaf.dtype)
        inner = (1,) * (jnp.ndim(leaf) - change.ndim)
        return jnp.broadcast_to(change.reshape(change.shape + inner), leaf.shape)

    state = jax.tree_util.tree_map_with_path(replace, state)
    for name in changes:
        if name not in found:
            raise unknown("hyper-parameter", name, read_hyper(state))
    return state


def read_hyper(state: Tree) -> dict[str, Any]:
    """All hyper-parameters that are stored in `state`, by name."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {name: leaf for path, leaf in leaves if (name := _hyper_name(path)) is not None}


def without_hyper(state: Tree) -> dict[str, Any]:
    """All other leaves of `state`, by their paths as `jax.tree_util.keystr` writes them."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): x for path, x in leaves if _hyper_name(path) is None}


def _hyper_name(path: tuple) -> str | None:
    if len(path) >= 2 and getattr(path[-2], "name", None) == "hyper":
        return getattr(path[-1], "key", None)
    return None
