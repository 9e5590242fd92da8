"""Algorithms as sides of a claim that change the environment, or whole groups of settings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.algorithms import registry
from jaxrl.core.types import Algorithm, Environment


@dataclasses.dataclass(frozen=True)
class Within:
    """An algorithm by name, in a changed environment and with other groups of settings.

    environment: returns the environment that the algorithm runs in. groups: replace those of its
    Config.
    """

    name: str
    environment: Callable[[Environment], Environment] = lambda env: env
    groups: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def Config(self) -> Callable[[], Any]:
        return functools.partial(registry.builder(self.name)[1], **self.groups)

    def __call__(self, env: Environment, config: Any) -> Algorithm:
        return registry.builder(self.name)[0](self.environment(env), config)
