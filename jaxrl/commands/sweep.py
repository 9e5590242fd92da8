"""Train many settings, each with many seeds, as far as can be in one program:

jaxrl sweep ppo/cartpole --seeds 8 --vary agent.learning-rate=1e-4,1e-3 --vary agent.hidden=64,64/32
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl.runtime import command_line, configuration

HELP = """Sweep: jaxrl sweep [CONFIG] --vary NAME=V1,V2,... [--vary ...] [options].

--vary agent.NAME=V1,V2,... or env-params.NAME=...: all combinations are trained, with all seeds.
Values are separated by commas; those of a list by slashes, and its entries by commas:
agent.hidden=64,64/32,32. Hyperparameters are vmapped; each choice of anything else is a program.
--samples N: draw N points, where a setting has a range, 'agent.learning-rate=log(1e-5,1e-2)' or
'agent.discount=uniform(0.9,0.999)', from --seed; of a list one value is drawn.
--halving ETA: successive halving; after steps/ETA^k only the best 1/ETA of the points go on.
--pbt STEPS: population based training; the members exchange states every so many steps.
--chunk N: at most N members side by side; as many as fit the memory unless said.
--resume FOLDER: go on with a sweep, which knows all of these."""


def main(argv: Sequence[str]) -> int:
    from jaxrl import sweeps

    vary, rest = command_line.take(argv, "vary", configuration.is_named)
    said = {}
    for field in dataclasses.fields(sweeps.Search):
        words, left = command_line.take(rest, field.name, configuration.is_named)
        said |= {field.name: words} if len(left) < len(rest) else {}
        rest = left
    search = sweeps.Search()
    search = configuration.override(search, command_line.nest(said, search))
    config = command_line.experiment(rest, HELP)
    sweeps.sweep(config, sweeps.parse(config, vary), search)
    return 0
