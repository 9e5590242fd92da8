"""The command `jaxrl`: each of its commands is a file here with a function `main(argv)`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import jaxrl
from jaxrl.core.errors import unknown

COMMANDS = {
    "train": "train an agent: jaxrl train ppo/cartpole --seeds 8",
    "resume": "go on with a run that was stopped: jaxrl resume runs/ppo-cartpole-0001",
    "evaluate": "play whole episodes with what was trained: jaxrl evaluate runs/ppo-cartpole-0001",
    "sweep": "train a grid of settings: jaxrl sweep ppo/cartpole --vary learning-rate=1e-4,1e-3",
    "suite": "train a suite of agents in many environments: jaxrl suite minatar --plan",
    "report": "compare runs on one HTML page: jaxrl report runs/*",
    "list": "what there is: jaxrl list envs, algorithms, claims, configs, losses, papers or suites",
    "show": "an environment or an agent, with all settings: jaxrl show cartpole",
    "check": "whether an environment keeps the rules: jaxrl check my_package.environments:maze",
}


def main(argv: Sequence[str]) -> int:
    """Call the command that `argv` begins with. Raises `UserError` for one that does not exist."""
    command, *rest = argv or ["--help"]
    if command in ("--help", "-h", "help"):
        print(overview())
        return 0
    if command == "--version":
        print(f"jaxrl {jaxrl.__version__}")
        return 0
    if command not in COMMANDS:
        raise unknown("command of jaxrl", command, COMMANDS)
    return importlib.import_module(f"jaxrl.commands.{command}").main(rest) or 0


def overview() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [f"jaxrl {jaxrl.__version__}: reinforcement learning in JAX", "", *lines, "",
         "jaxrl COMMAND --help says the options of each."]
    )  # fmt: skip


def run() -> None:
    """The entry point of the installed command."""
    from jaxrl.runtime import command_line

    sys.argv[0] = "jaxrl"
    command_line.run(main)
