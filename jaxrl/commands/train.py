"""Train an agent: `jaxrl train ppo/cartpole --seeds 8`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxrl.commands import command_line
from jaxrl.runtime.configuration import Experiment


def main(argv: Sequence[str]) -> int:
    config = command_line.experiment(argv, "Train an agent: jaxrl train [CONFIG] [options]")
    from jaxrl.runtime import processes

    with processes.join(config) as config:
        train(config)
    return 0


def train(config: Experiment) -> None:
    from jaxrl import sweeps
    from jaxrl.runtime import processes, training
    from jaxrl.sweeps import memory

    if config.resume:
        if sweeps.is_sweep(config.resume):
            processes.refuse_several("A sweep", config)
            sweeps.sweep(config)
        else:
            training.train(config)
    elif not (config.fork or memory.fits(config)):
        print(
            "Not all seeds fit into memory at once; a sweep trains them in parts.", file=sys.stderr
        )
        sweeps.sweep(config)
    else:
        training.train(config)
