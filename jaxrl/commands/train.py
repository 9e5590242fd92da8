"""Train an agent: `jaxrl train ppo/cartpole --seeds 8`."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.runtime import command_line


def main(argv: Sequence[str]) -> int:
    config = command_line.experiment(argv, "Train an agent: jaxrl train [CONFIG] [options]")
    from jaxrl.runtime import sweeping, training

    if config.resume and sweeping.is_sweep(config.resume):
        sweeping.sweep(config)
    else:
        training.train(config)
    return 0
