"""Train many settings with many seeds, in as few programs as possible:

jaxrl sweep ppo/cartpole --seeds 8 --vary agent.learning-rate=1e-4,1e-3 --vary agent.hidden=64,64/32
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl.commands import command_line
from jaxrl.runtime import configuration, processes

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
--chunk N: train at most N members at once; without it, as many as fit the memory.
--resume FOLDER: continue a sweep, with its options."""


def main(argv: Sequence[str]) -> int:
    from jaxrl import sweeps

    vary, rest = command_line.take_words(argv, "vary", configuration.is_configuration)
    options = {}
    for field in dataclasses.fields(sweeps.Search):
        words, left = command_line.take_words(rest, field.name, configuration.is_configuration)
        options |= {field.name: words} if len(left) < len(rest) else {}
        rest = left
    search = sweeps.Search()
    search = configuration.override(search, command_line.nest(options, search))
    config = command_line.experiment(rest, HELP)
    processes.refuse_several("A sweep", config)
    sweeps.sweep(config, sweeps.parse(config, vary), search)
    return 0
