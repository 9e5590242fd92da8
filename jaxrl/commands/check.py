"""Whether an environment keeps the rules: `jaxrl check my_package.environments:maze`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl.runtime import command_line
from jaxrl.runtime.configuration import Setting


@dataclasses.dataclass(frozen=True)
class Options:
    """How an environment is checked."""

    env_params: dict[str, Setting] = dataclasses.field(default_factory=dict)
    """Settings that differ from its defaults, such as size=16."""
    steps: int = 64
    """Of the random roll-out along which rules are checked."""


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl check ENV [options]"
    (name,), options = command_line.places_and_options(
        argv, Options, usage, lambda word: ":" in word
    )
    from jaxrl import envs

    env = envs.make(name, **options.env_params)
    envs.check_environment(env, options.steps)
    print(f"{name} keeps every rule that was checked, along {options.steps} random steps.")
    return 0
