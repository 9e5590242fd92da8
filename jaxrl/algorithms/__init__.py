"""Published algorithms by name: `jaxrl.algorithms.ppo(env, {"num_envs": 64})`.

Each is defined in a file of its own name in one of the family folders here, and imported when it is
first used. It takes an environment and its `Config`, or a mapping of the settings that differ from
the defaults of that Config, whose names may be shortened (`jaxrl.core.settings.find_name`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl.algorithms.registry import Build


def __getattr__(name: str) -> Any:
    registry = importlib.import_module(f"{__name__}.registry")
    from jaxrl.core.errors import unknown
    from jaxrl.kit import AlgorithmBuilder, DirectBuilder

    if name not in registry.names():
        if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}"):
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        raise AttributeError(str(unknown("algorithm", name, registry.names())))
    build, config = registry.builder(name)
    is_builder = isinstance(build, AlgorithmBuilder | DirectBuilder)
    return build if is_builder else _as_builder(build, config)


def __dir__() -> list[str]:
    registry = importlib.import_module(f"{__name__}.registry")

    return list(registry.names())


def _as_builder(build: Build, kind: type) -> Callable[..., Any]:
    """Make a plain builder function callable as an `AlgorithmBuilder` is."""
    from jaxrl.core import settings

    @functools.wraps(build)
    def build_algorithm(env, config=None):
        given = config is not None and not isinstance(config, Mapping)
        return build(env, config if given else settings.replace(kind(), config or {}))

    build_algorithm.Config = kind  # type: ignore[attr-defined]
    return build_algorithm
