"""Systems as sides of a claim, where that takes more than settings of theirs and of an
environment."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.algorithms import registry
from jaxrl.core.types import Algorithm, Environment


@dataclasses.dataclass(frozen=True)
class Within:
    """The system called `name`, in what `environment` makes of the environment, with whole `groups`
    in the place of its settings' own."""

    name: str
    environment: Callable[[Environment], Environment] = lambda env: env
    groups: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def Config(self) -> Callable[[], Any]:
        return functools.partial(registry.builder(self.name)[1], **self.groups)

    def __call__(self, env: Environment, config: Any) -> Algorithm:
        return registry.builder(self.name)[0](self.environment(env), config)
