"""Train an agent: `python experiments/train.py configs/ppo/cartpole.yaml --seeds 8`."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.runtime import command_line


def main(argv: Sequence[str]) -> int:
    config = command_line.experiment(argv, "Train an agent: train.py [CONFIG.yaml] [options]")
    from jaxrl.runtime import training

    training.train(config)
    return 0


if __name__ == "__main__":
    command_line.run(main)
