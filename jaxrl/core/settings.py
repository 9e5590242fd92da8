"""Settings in groups: a Config is a frozen dataclass whose fields may be such dataclasses.

A setting in a group has a dotted name (`optimizer.learning_rate`), which may be shortened to an
ending (`learning_rate`), see `find_name`. Losses read hyperparameters from `Values`, which holds
arrays. The code that builds losses reads the other settings from `Static`, which refuses
hyperparameters, so that none can be compiled into a program by mistake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, dataclass_transform

from jaxrl.core.errors import UserError, unknown

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def group(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of settings."""
    return dataclasses.dataclass(frozen=True)(cls)


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yield the dotted name, field and value of every setting, groups aside."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field, value


def lookup(config: Any, path: str) -> Any:
    """Return the setting or group at a dotted `path`. Raises `UserError` if there is none."""
    value = config
    for name in path.split("."):
        if not hasattr(value, name):
            known = [f.name for f in dataclasses.fields(value)]
            raise unknown(f"setting of {type(value).__name__}", name, known)
        value = getattr(value, name)
    return value


def replace(config: Any, changes: Mapping[str, Any]) -> Any:
    """Return `config` with changed settings, by dotted names or endings of them (`full_name`), or
    nested as in a YAML file (`{"optimizer": {"learning_rate": 1e-3}}`). Lists become tuples.

    Raises `UserError` for a name that does not exist or may stand for several.
    """
    known = [name for name, _, _ in walk(config)]
    for name, value in flatten(changes):
        config = _replace_at(config, full_name(name, known, "setting").split("."), value)
    return config


def flatten(changes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by dotted names."""
    for name, value in changes.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _replace_at(config: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if rest:
        value = _replace_at(getattr(config, name), rest, value)
    elif isinstance(value, list):  # a list cannot be hashed, and a Config must be
        value = tuple(value)
    return dataclasses.replace(config, **{name: value})


def refuse(config: Any, names: Iterable[str], why: str) -> None:
    """Raise `UserError`, giving the reason `why`, if one of the settings `names` (dotted) is on:
    true, or a number above 0."""
    for name in names:
        if lookup(config, name):
            raise UserError(f"{name} is {lookup(config, name)}; {why}.")


def full_name(name: str, known: Iterable[str], kind: str = "hyperparameter") -> str:
    """Return the one of `known` that `name` stands for, see `find_name`. Raises `UserError` also if
    there is none, calling it a `kind`."""
    known = list(known)
    found = find_name(name, known)
    if found is None:
        raise unknown(kind, name, known)
    return found


def find_name(name: str, known: Iterable[str], root: str = "") -> str | None:
    """Return the one of `known` that `name` stands for: `name` itself if it is one of them, or else
    the one that ends with it (`learning_rate` for `optimizer.learning_rate`). If several do, the
    one nearest the root wins, which has the fewest dots. None if none does.

    root: a group that `name` may begin with while it skips the groups in between: with the root
        `agent`, `agent.learning_rate` stands for `agent.optimizer.learning_rate`.

    Raises `UserError`, listing all candidates, if several are equally near the root.
    """
    found = candidates(name, known, root)
    depths = [candidate.count(".") for candidate in found]
    if depths.count(min(depths, default=0)) > 1:
        raise UserError(f"'{name}' may be any of {', '.join(found)}; say which.")
    return found[depths.index(min(depths))] if found else None


def candidates(name: str, known: Iterable[str], root: str = "") -> list[str]:
    """Return those of `known` that `name` may stand for: `name` alone if it is one of them, or else
    all that end with it. `root` is explained at `find_name`."""
    known = list(known)
    if name in known:
        return [name]
    group = f"{root}." if root and name.startswith(f"{root}.") else ""
    ending = f".{name.removeprefix(group)}"
    return [k for k in known if k.startswith(group) and k.endswith(ending)]


class Values:
    """Hyperparameters by attribute: `values.optimizer.learning_rate` is the entry of that dotted
    name in the dictionary that it is made from."""

    def __init__(self, values: Mapping[str, Any], prefix: str = ""):
        self._values, self._prefix = values, prefix

    def __getattr__(self, name: str) -> Any:
        path = self._prefix + name
        if path in self._values:
            return self._values[path]
        if any(k.startswith(path + ".") for k in self._values):
            return Values(self._values, path + ".")
        error = unknown("hyperparameter", path, self._values)
        raise AttributeError(str(error))

    def __getitem__(self, path: Any) -> Any:
        """Return the values at a dotted path, or those of a group of the Config."""
        value = self
        for name in (path if isinstance(path, str) else path_of(path)).split("."):
            value = getattr(value, name)
        return value

    def replace(self, **changes: Any) -> Values:
        """Return all values with others in the place of those at the top of the Config, such as
        `hyper.replace(discount=0.9)`. Raises `UserError` for a name that there is not."""
        for name in changes:
            if name not in self._values:
                raise unknown("hyperparameter", name, self._values)
        return Values({**self._values, **changes}, self._prefix)


class Static:
    """A Config whose hyperparameters cannot be read, since their values are arrays in the state."""

    def __init__(self, config: Any, prefix: str = ""):
        self._config, self._prefix = config, prefix

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._config, name)
        path = self._prefix + name
        if dataclasses.is_dataclass(value):
            return Static(value, f"{path}.")
        for field in dataclasses.fields(self._config):
            if field.name == name and field.metadata.get("hyper"):
                raise AttributeError(
                    f"config.{path} is a hyperparameter, which may be swept: read net.hyper.{path}"
                )
        return value


def path_of(group: Any) -> str:
    """Return the dotted path of a group of settings, "critic" for `config.critic`.

    group: a `Static`, which recipes type as the class of its settings.
    """
    return object.__getattribute__(group, "_prefix")[:-1]


def settings_of(group: Any) -> Any:
    """Return the settings that a `Static` hides hyperparameters of."""
    return object.__getattribute__(group, "_config")
