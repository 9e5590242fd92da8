"""Train an agent: `python experiments/train.py configs/ppo/cartpole.yaml --seeds 8`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxrl.runtime import command_line


def main(argv: Sequence[str]) -> int:
    config = command_line.experiment(argv, "Train an agent: train.py [CONFIG.yaml] [options]")
    from jaxrl.runtime import training

    try:
        training.train(config)
    except (training.NotFinite, training.CheckFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    command_line.run(main)
