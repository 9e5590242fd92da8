"""Check that an environment keeps the rules: `jaxrl check my_package.environments:maze`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl.commands import command_line
from jaxrl.runtime.configuration import EnvSetting


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `jaxrl check`."""

    env_params: dict[str, EnvSetting] = dataclasses.field(default_factory=dict)
    """Settings of the environment that differ from its defaults, such as size=16."""
    steps: int = 64
    """Steps of the random rollout along which the rules are checked."""


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl check ENV [options]"
    (name,), options = command_line.positionals_and_options(
        argv, Options, usage, lambda word: ":" in word
    )
    from jaxrl import envs

    env = envs.make(name, **options.env_params)
    envs.check_environment(env, options.steps)
    print(f"{name} kept every rule that was checked, over {options.steps} random steps.")
    return 0
