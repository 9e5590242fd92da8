"""Descriptions of algorithms, from their docstrings and the lines that declare settings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

from jaxrl.algorithms import registry
from jaxrl.core import settings as settings_
from jaxrl.core.describe import meanings, range_text, value_text


@dataclasses.dataclass(frozen=True)
class Setting:
    """Description of a setting of an algorithm."""

    name: str
    """Dotted name in full."""
    default: str
    """Default value, as a command line takes it."""
    range: str
    """Values that it may have; "" for a setting without a range."""
    swept: bool
    """True for an array, which one program sweeps (`hyper`); False for a part of the program."""
    meaning: str
    """Docstring below the line that declares the setting, in one line."""


def settings(config: Any) -> list[Setting]:
    """Describe every setting of a Config (such as `registry.default_config(name)`) and its groups,
    with the values of `config` as defaults."""
    rows = []
    for name, field, value in settings_.walk(config):
        owner = _owner(config, name)
        text = range_text(field.metadata.get("range"), field.default)
        swept = bool(field.metadata.get("hyper"))
        meaning = meanings(type(owner)).get(field.name, "")
        rows.append(Setting(name, value_text(value), text, swept, meaning))
    return rows


def groups(config: Any) -> dict[str, str]:
    """Return the docstrings of the groups of `config`, which explain their defaults: dotted name ->
    docstring below the line that declares the group. Groups without one are left out."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            if meaning := meanings(type(config)).get(field.name):
                found[field.name] = meaning
            found |= {f"{field.name}.{name}": meaning for name, meaning in groups(value).items()}
    return found


def text(name: str) -> str:
    """Return the docstring of an algorithm's module: its paper, its equations and what it does."""
    module = registry.built_in().get(name, name).partition(":")[0]
    return inspect.cleandoc(importlib.import_module(module).__doc__ or "")


def _owner(config: Any, name: str) -> Any:
    """Return the group of `config` that holds the setting `name`."""
    path = name.rpartition(".")[0]
    return settings_.lookup(config, path) if path else config
