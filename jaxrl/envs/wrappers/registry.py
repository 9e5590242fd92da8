"""Wrappers by name and arguments, as a configuration gives them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Environment
from jaxrl.envs import wrappers

# What a configuration cannot write: functions, and keys or texts that tasks draw.
IN_PYTHON = (
    "domain_randomization",
    "forced_text",
    "goal_conditioned",
    "reward_components",
    "start_key",
)
FUNCTIONS = ("function",)  # arguments that only Python can give, with defaults

Named = str | Mapping[str, Mapping[str, Any]]


def names() -> tuple[str, ...]:
    """Return the names of the wrappers that a configuration can name, sorted."""
    return tuple(sorted(set(wrappers.__all__) - set(IN_PYTHON)))


def arguments(name: str) -> dict[str, inspect.Parameter]:
    """Return the arguments of the wrapper called `name`, without the environment.

    Raises `UserError` for a wrapper that does not exist or that a configuration cannot name.
    """
    if name in IN_PYTHON:
        raise UserError(
            f"The wrapper '{name}' takes functions or keys, so it can only be applied in Python."
        )
    if name not in names():
        raise unknown("wrapper", name, names())
    _, *parameters = inspect.signature(_function(name)).parameters.values()
    return {p.name: p for p in parameters if p.name not in FUNCTIONS}


def wrap(env: Environment, named: Sequence[Named]) -> Environment:
    """Wrap an environment in named wrappers, the first of them innermost.

    named: each a name, or a mapping from one name to its arguments:
        `[{"sticky_actions": {"stickiness": 0.25}}, "frame_stack"]`.

    The same arguments give the same object. Raises `UserError` for a wrapper or an argument that
    does not exist, is missing or has a wrong value, and for an environment that it does not fit.
    """
    for entry in named:
        name, given = split_name(entry)
        known = arguments(name)
        for argument in given:
            if argument not in known:
                raise unknown(f"argument of the wrapper '{name}'", argument, known)
        for argument, parameter in known.items():
            if parameter.default is parameter.empty and argument not in given:
                raise UserError(f"The wrapper '{name}' needs {argument}, such as {argument}=2.")
        hints = typing.get_type_hints(_function(name))
        values = {k: _value(name, k, v, hints.get(k, Any)) for k, v in given.items()}
        env = _function(name)(env, **values)
    return env


def label(named: Sequence[Named]) -> str:
    """Return wrappers on one line, such as `sticky_actions(stickiness=0.25), frame_stack`."""
    texts = []
    for entry in named:
        name, given = split_name(entry)
        values = ", ".join(f"{k}={v}" for k, v in given.items())
        texts.append(f"{name}({values})" if given else name)
    return ", ".join(texts)


def split_name(entry: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a wrapper and its arguments."""
    if isinstance(entry, str):
        return entry, {}
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise UserError(
            f"A wrapper is {entry!r}; it must be a name, or one name with its arguments, such as "
            "{sticky_actions: {stickiness: 0.25}}."
        )
    ((name, given),) = entry.items()
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise UserError(
            f"The wrapper '{name}' has {given!r} for its arguments; they must be a mapping, such "
            "as {stickiness: 0.25}."
        )
    return name, given


def _function(name: str) -> Callable[..., Environment]:
    return getattr(wrappers, name)


def _value(name: str, argument: str, value: Any, kind: Any) -> Any:
    """Return an argument's value; numbers are checked by the wrapper itself, for its environment.
    Raises `UserError` for text, and for a flag in the place of a number or the reverse."""
    flag = kind is bool
    if isinstance(value, str) or isinstance(value, bool) != flag:
        expected = "true or false" if flag else "a number or a list of numbers"
        raise UserError(
            f"The argument '{argument}' of the wrapper '{name}' is {value!r}; it must be "
            f"{expected}."
        )
    return value
