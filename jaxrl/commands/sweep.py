"""Train a grid of hyper-parameters times seeds in one program:

jaxrl sweep ppo/cartpole --seeds 8 --vary agent.learning-rate=1e-4,1e-3
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.runtime import command_line, configuration


def main(argv: Sequence[str]) -> int:
    vary, rest = command_line.take(argv, "vary", configuration.is_named)
    config = command_line.experiment(
        rest,
        "Sweep: jaxrl sweep [CONFIG] --vary agent.NAME=V1,V2,... [--vary ...] [options]. "
        "The grid of values times the seeds is trained in one vmapped program.",
    )
    from jaxrl.runtime import sweeping

    sweeping.sweep(config, sweeping.parse(config, vary))
    return 0
