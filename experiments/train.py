"""Train an agent: `python experiments/train.py configs/ppo/cartpole.yaml --seeds 8`."""

from jaxrl.commands.train import main
from jaxrl.runtime import command_line

if __name__ == "__main__":
    command_line.run(main)
