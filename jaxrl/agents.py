"""The built-in algorithms by name: `jaxrl.agents.ppo(env, {"num_envs": 64})`.

Each is what its file below `jaxrl/systems` defines, imported when it is asked for. It takes an
environment and its `Config`, or what differs from that Config's defaults, by unique endings of
names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.core import settings
from jaxrl.core.errors import unknown
from jaxrl.core.types import Algorithm, Environment
from jaxrl.kit import System
from jaxrl.systems import registry


def __getattr__(name: str) -> Any:
    if name not in registry.names():
        raise AttributeError(str(unknown("algorithm", name, registry.names())))
    build, config = registry.builder(name)
    return build if isinstance(build, System) else _configured(build, config)


def __dir__() -> list[str]:
    return list(registry.names())


def _configured(build: Callable[..., Algorithm], kind: type) -> Callable[..., Algorithm]:
    """A builder that is no `System`, called as one."""

    @functools.wraps(build)
    def called(env: Environment, config: Any = None) -> Algorithm:
        given = config is not None and not isinstance(config, Mapping)
        return build(env, config if given else settings.replace(kind(), config or {}))

    called.Config = kind  # type: ignore[attr-defined]
    return called
