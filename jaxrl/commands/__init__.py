"""The command `jaxrl`. Each of its commands is a file here with a function `main(argv)`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import jaxrl
from jaxrl.core.errors import unknown

COMMANDS = {
    "train": "train an agent: jaxrl train ppo/cartpole --seeds 8",
    "resume": "continue a run that was stopped: jaxrl resume runs/ppo-cartpole-0001",
    "evaluate": "play episodes with a trained policy: jaxrl evaluate runs/ppo-cartpole-0001",
    "sweep": "train a grid of settings: jaxrl sweep ppo/cartpole --vary learning-rate=1e-4,1e-3",
    "suite": "train the algorithms of a suite in its environments: jaxrl suite minatar --plan",
    "export": "write a policy that acts without jaxrl: jaxrl export runs/ppo-cartpole-0001",
    "report": "compare runs on one HTML page: jaxrl report runs/*",
    "list": "list envs, algorithms, configs, losses, suites, pretrained, ...: jaxrl list envs",
    "show": "describe an environment, algorithm, loss, ... in full: jaxrl show cartpole",
    "check": "check that an environment keeps the rules: jaxrl check my_package.environments:maze",
}


def main(argv: Sequence[str]) -> int:
    """Run the command that `argv` begins with. Raises `UserError` if it does not exist."""
    command, *rest = argv or ["--help"]
    if command in ("--help", "-h", "help"):
        print(overview())
        return 0
    if command == "--version":
        print(f"jaxrl {jaxrl.__version__}")
        return 0
    if command not in COMMANDS:
        raise unknown("jaxrl command", command, COMMANDS)
    return importlib.import_module(f"jaxrl.commands.{command}").main(rest) or 0


def overview() -> str:
    """Return the text of `jaxrl --help`."""
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [f"jaxrl {jaxrl.__version__}: reinforcement learning in JAX", "", *lines, "",
         "jaxrl COMMAND --help lists the options of a command."]
    )  # fmt: skip


def run() -> None:
    """Run the installed command `jaxrl`."""
    from jaxrl.commands import command_line

    sys.argv[0] = "jaxrl"
    command_line.run(main)
