"""Algorithms in words, from their docstrings and the lines that declare settings."""

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
    """A setting of an algorithm.

    name: dotted, as a file has it; on a command line a unique ending will do.
    default: as a command line would take it.
    range: what it may be; "" where nothing is said of it.
    swept: whether it is an array that can be swept in one program (`hyper`), rather than a part of
        the program (`static`).
    meaning: the docstring below the line that declares it, in one line.
    """

    name: str
    default: str
    range: str
    swept: bool
    meaning: str


def settings(config: Any) -> list[Setting]:
    """Every setting of a Config (`registry.default_config(name)`), those of its groups with them,
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
    """Dotted name of a group of `config` -> the docstring below the line that names it: why its
    defaults are what they are. Groups without one are left out."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            if said := meanings(type(config)).get(field.name):
                found[field.name] = said
            found |= {f"{field.name}.{name}": said for name, said in groups(value).items()}
    return found


def text(name: str) -> str:
    """The docstring of an algorithm's module: its paper, equation and what it does."""
    module = registry.built_in().get(name, name).partition(":")[0]
    return inspect.cleandoc(importlib.import_module(module).__doc__ or "")


def _owner(config: Any, name: str) -> Any:
    """The group of `config` that the setting `name` is in."""
    path = name.rpartition(".")[0]
    return settings_.lookup(config, path) if path else config
