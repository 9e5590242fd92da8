"""Another environment beside that of the run, which differs by one parameter."""

from __future__ import annotations

import dataclasses

import jax

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs.registry import vary
from jaxrl.kit import group, static


@group
class Variation:
    """An environment that differs from that of the run by one parameter."""

    vary: str = "gravity"
    """Name of the parameter that differs."""
    value: float = static(20.0, low=0)
    """Value of that parameter in the other environment."""


def make_variant(env: Environment, settings: Variation) -> Environment:
    """Return the environment with the other value of the parameter. Raises `UserError` for an
    unknown parameter, or a value of the wrong type."""
    whole = float(settings.value).is_integer()
    values = [int(settings.value) if whole else settings.value]
    params = jax.tree.map(lambda x: x[0], vary(env, settings.vary, values))
    return dataclasses.replace(env, params=params)


def check_variation(env: Environment, settings: Variation) -> None:
    """Raise `UserError` as `make_variant`, and for an environment on the host."""
    if env.host:
        raise UserError(f"'{env.name}' runs on the host and has no parameters that could differ.")
    make_variant(env, settings)
