"""Compare runs on one HTML page: `python experiments/report.py runs/ppo-cartpole-0001`."""

from jaxrl.commands.report import main
from jaxrl.runtime import command_line

if __name__ == "__main__":
    command_line.run(main)
