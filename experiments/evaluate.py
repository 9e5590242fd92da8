"""Evaluate a trained run: `python experiments/evaluate.py runs/ppo-cartpole-0001`."""

from jaxrl.commands.evaluate import main
from jaxrl.runtime import command_line

if __name__ == "__main__":
    command_line.run(main)
