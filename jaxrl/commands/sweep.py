"""Train many settings with many seeds, in as few programs as possible:

jaxrl sweep ppo/cartpole --seeds 8 --vary agent.learning-rate=1e-4,1e-3 --vary agent.hidden=64,64/32
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration, processes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HELP = """Train a grid of settings: jaxrl sweep [CONFIG] --vary NAME=V1,V2,... [...] [options].

--vary agent.NAME=V1,V2,... or env-params.NAME=...: train all combinations, with all seeds.
Values are separated by commas. Lists are separated by slashes, and their entries by commas:
agent.hidden=64,64/32,32. Hyperparameters are vmapped; any other choice is a program of its own.
A range with a number of values is a list: 'agent.learning-rate=range(1e-4,1e-2,5)' has a constant
factor between them, since a learning rate is declared as log-scaled; other settings have equal
differences. log(...) and uniform(...) choose regardless of the setting.
--samples N: draw N points, with --seed, where a setting has a range without a number, such as
'agent.learning-rate=range(1e-5,1e-2)' or 'agent.discount=uniform(0.9,0.999)'; from a list of values
one is drawn.
--halving ETA: successive halving; after steps/ETA^k only the best 1/ETA of the points continue.
--pbt STEPS: population based training; the members exchange states every STEPS steps.
--optuna N: Optuna proposes N points at a time, by the returns of those before; --samples is their
number in all.
--chunk N: train at most N members at once; without it, as many as fit the memory.
--resume FOLDER: continue a sweep, with its options.
--launcher ray|submitit: train the parts (chunks of programs) as tasks of the Ray cluster at
RAY_ADDRESS or as jobs of SLURM, with --cpus N, --gpus N and --ram GB for each; for SLURM also
--hours N and --slurm partition=gpu account=lab. A resumed sweep may have another launcher."""

T = TypeVar("T", bound="DataclassInstance")


def main(argv: Sequence[str]) -> int:
    from jaxrl import sweeps

    vary, rest = command_line.take_words(argv, "vary", configuration.is_configuration)
    search, rest = _take_options(rest, sweeps.Search())
    launch, rest = _take_options(rest, sweeps.Launch())
    config = command_line.experiment(rest, HELP)
    processes.refuse_several("A sweep", config)
    if config.plan:
        raise UserError("--plan is for one run; leave out --vary and give it to jaxrl train.")
    sweeps.sweep(config, sweeps.parse(config, vary), search, launch=launch)
    return 0


def _take_options(argv: Sequence[str], default: T) -> tuple[T, list[str]]:
    """Return the options that are fields of the dataclass `default`, and the words that remain."""
    options, rest = {}, list(argv)
    for field in dataclasses.fields(default):
        words, left = command_line.take_words(rest, field.name, configuration.is_configuration)
        options |= {field.name: words} if len(left) < len(rest) else {}
        rest = left
    return configuration.override(default, command_line.nest(options, default)), rest
