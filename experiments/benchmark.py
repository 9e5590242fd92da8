"""Train a suite of agents in environments: `python experiments/benchmark.py minatar`."""

from jaxrl.commands.suite import main
from jaxrl.runtime import command_line

if __name__ == "__main__":
    command_line.run(main)
