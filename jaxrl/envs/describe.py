"""Descriptions of environments, from the registry, the docstrings and the declarations of
settings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import numpy as np

from jaxrl.core import spaces
from jaxrl.core.describe import meanings, value_text
from jaxrl.envs import registry


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting that `envs.make` takes.

    default: as a command line would take it; for an array, its dtype and shape.
    of: `params` for a field of `env.params`, which may differ between copies in one program, or
        `builder` for an argument of the builder, whose docstring (`texts`) explains it.
    meaning: the comment on the line that declares the setting; "" if there is none.
    """

    name: str
    default: str
    of: str
    meaning: str


def settings(name: str) -> list[Setting]:
    """Return the settings that `envs.make(name)` accepts. Raises `UserError` as `envs.make`
    does."""
    defaults = registry.settings(name)
    said = params_meanings(registry.make(name).params)
    return [
        Setting(x, value_text(v), "params" if x in said else "builder", said.get(x, ""))
        for x, v in defaults.items()
    ]


def params_meanings(params: Any) -> dict[str, str]:
    """Map each field of a params dataclass to its meaning, including the params that a wrapper
    holds as `inner`."""
    if not dataclasses.is_dataclass(params):
        return {}
    found = dict(meanings(type(params)))
    inner = found.pop(registry.INNER, None)
    return found if inner is None else params_meanings(getattr(params, registry.INNER)) | found


def texts(name: str) -> list[str]:
    """Return the docstrings of an environment's builder and module; none for other packages."""
    module_name, colon, attribute = registry.BUILT_IN.get(name, name).partition(":")
    if not colon:
        return []
    module = importlib.import_module(module_name)
    written = [getattr(module, attribute).__doc__, module.__doc__]
    return [inspect.cleandoc(text) for text in written if text]


def space(of: spaces.Space) -> str:
    """Describe a space, as in `3, discrete` or `float32 [2] from -1 to 1`."""
    if isinstance(of, spaces.Discrete):
        return f"{of.n}, discrete"
    if isinstance(of, spaces.Box):
        low, high = spaces.bounds(of)
        return f"{np.dtype(of.dtype)} {list(of.shape)} from {low.min():g} to {high.max():g}"
    return f"`{of}`"
