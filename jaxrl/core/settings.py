"""Settings in groups: a Config is a frozen dataclass whose fields may be such dataclasses.

What is in a group has a dotted name (`optimizer.learning_rate`). Losses read hyperparameters from
`Values`, which holds arrays; what they are built from reads the rest from `Static`, which refuses
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
    """A frozen dataclass of settings."""
    return dataclasses.dataclass(frozen=True)(cls)


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Dotted name, field and value of every setting that is no group."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field, value


def lookup(config: Any, path: str) -> Any:
    """The setting or group at a dotted `path`. Raises `UserError` where there is none."""
    value = config
    for name in path.split("."):
        if not hasattr(value, name):
            known = [f.name for f in dataclasses.fields(value)]
            raise unknown(f"setting of {type(value).__name__}", name, known)
        value = getattr(value, name)
    return value


def replace(config: Any, changes: Mapping[str, Any]) -> Any:
    """`config` with changed settings, by dotted names or unique endings of them, or nested as in a
    YAML file (`{"optimizer": {"learning_rate": 1e-3}}`); lists become tuples.

    Raises `UserError` for a name that does not exist or may mean several.
    """
    known = [name for name, _, _ in walk(config)]
    for name, value in _flat(changes):
        config = _replaced(config, full_name(name, known, "setting").split("."), value)
    return config


def _flat(changes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted names."""
    for name, value in changes.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _replaced(config: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if rest:
        value = _replaced(getattr(config, name), rest, value)
    elif isinstance(value, list):  # which has no hash, as a Config must
        value = tuple(value)
    return dataclasses.replace(config, **{name: value})


def refuse(config: Any, names: Iterable[str], why: str) -> None:
    """Raises `UserError`, which says `why`, where one of the settings `names`, dotted, is on: true,
    or a number above 0."""
    for name in names:
        if lookup(config, name):
            raise UserError(f"{name} is {lookup(config, name)}; {why}.")


def full_name(name: str, known: Iterable[str], kind: str = "hyperparameter") -> str:
    """The one of `known` that `name` is, or is the ending of (`learning_rate` of
    `optimizer.learning_rate`). Raises `UserError` for none and, listing them, for several."""
    known = list(known)
    if name in known:
        return name
    found = [k for k in known if k.endswith("." + name)]
    if len(found) > 1:
        raise UserError(f"'{name}' may be any of {', '.join(found)}; say which.")
    if not found:
        raise unknown(kind, name, known)
    return found[0]


class Values:
    """Hyperparameters by attribute: `values.optimizer.learning_rate` is what has that dotted name
    in the dictionary that it is made from."""

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

    def __getitem__(self, path: str | Static) -> Any:
        value = self
        for name in (path if isinstance(path, str) else path_of(path)).split("."):
            value = getattr(value, name)
        return value


class Static:
    """A Config whose hyperparameters cannot be read: their values are arrays in the state."""

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


def path_of(group: Static) -> str:
    """Return the dotted path of a group of settings: "critic" for `config.critic`."""
    return object.__getattribute__(group, "_prefix")[:-1]


def settings_of(group: Static) -> Any:
    """Return the settings that a `Static` hides hyperparameters of."""
    return object.__getattribute__(group, "_config")
