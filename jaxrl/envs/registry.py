"""Environments by name, as a command line gives them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl.core import errors, plugins
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment

# Imported when they are asked for: a name must not cost the import of every other environment.
BUILT_IN = {
    "acrobot": "jaxrl.envs.classic.acrobot:acrobot",
    "cartpole": "jaxrl.envs.classic.cartpole:cartpole",
    "mountain_car": "jaxrl.envs.classic.mountain_car:mountain_car",
    "mountain_car_continuous": "jaxrl.envs.classic.mountain_car_continuous:mountain_car_continuous",
    "pendulum": "jaxrl.envs.classic.pendulum:pendulum",
}


def names() -> tuple[str, ...]:
    """The names of the built-in environments, sorted."""
    return tuple(sorted(BUILT_IN))


def make(name: str, /, **params: Any) -> Environment:
    """The environment called `name`, its parameters overridden by `params`.

    name: one of `names()`, or `my_package.worlds:maze`: an `Environment` in a module of one's own,
        or a function without arguments that returns one.
    params: fields of the environment's `params`: numbers, or arrays of the default's shape. The
        spaces stay those of the defaults.

    The same arguments give the same object, and without `params` the builder's own, so `jax.jit`
    finds what it compiled; a module that was reloaded gives its new environment.

    Raises `UserError` for an unknown name or parameter, a value of the wrong type, and a module
    that cannot be imported or holds no such environment.
    """
    env = _find(name)
    if not params:
        return env
    overrides = tuple((field, _value(env, field, params[field])) for field in sorted(params))
    return _override(env, overrides)


def _find(name: str) -> Environment:
    value = plugins.find("environment", name, BUILT_IN, lambda x: isinstance(x, Environment))
    return _build(name, value)


def _build(name: str, value: Any) -> Environment:
    if isinstance(value, Environment):
        return value
    env = _call(name, value) if callable(value) else value
    if not isinstance(env, Environment):
        what = "returns" if callable(value) else "is"
        raise UserError(
            f"'{name}' {what} {_a(env)}; it must be an Environment, or a function that returns one."
        )
    return env


@functools.cache
def _call(name: str, builder: Callable[[], Any]) -> Any:
    try:
        inspect.signature(builder).bind()
    except TypeError as error:
        raise UserError(
            f"The builder '{name}' needs arguments ({error}); it must be callable without any."
        ) from error
    return builder()


@dataclasses.dataclass(frozen=True)
class _ArrayValue:
    """An array that can be the key of a cache."""

    data: bytes
    shape: tuple[int, ...]
    dtype: str

    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


def _value(env: Environment, field: str, value: Any) -> Any:
    """`value` as the type of the parameter that it overrides, hashable."""
    fields = _fields(env)
    if not fields:
        raise UserError(f"'{env.name}' has no parameters, so '{field}' cannot be set.")
    if field not in fields:
        raise errors.unknown(f"parameter of '{env.name}'", field, fields)
    default = fields[field]
    label = f"The parameter '{field}' of '{env.name}' is {value!r}"
    if isinstance(default, bool):
        if not isinstance(value, bool | np.bool_):
            raise UserError(f"{label}; it must be true or false.")
        return bool(value)
    if isinstance(default, int):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise UserError(f"{label}; it must be an integer, such as {default}.")
        return int(value)
    if isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or value != value:
            raise UserError(f"{label}; it must be a number, such as {default:g}.")
        return float(value)
    if hasattr(default, "dtype") and hasattr(default, "shape"):
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" or array.shape != default.shape:
            raise UserError(f"{label}; it must be an array of numbers of shape {default.shape}.")
        array = array.astype(default.dtype)
        return _ArrayValue(array.tobytes(), array.shape, array.dtype.str)
    raise UserError(
        f"{label}, but it holds {_a(default)}; only numbers and arrays can be overridden by name, "
        "so use dataclasses.replace on the environment's params."
    )


def _fields(env: Environment) -> dict[str, Any]:
    if not dataclasses.is_dataclass(env.params):
        return {}
    return {f.name: getattr(env.params, f.name) for f in dataclasses.fields(env.params)}


@functools.cache
def _override(env: Environment, overrides: tuple[tuple[str, Any], ...]) -> Environment:
    changes = {k: v.array() if isinstance(v, _ArrayValue) else v for k, v in overrides}
    return dataclasses.replace(env, params=dataclasses.replace(env.params, **changes))


def _a(value: Any) -> str:
    """`an int`, `a dict`."""
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
