"""Continue a run that was stopped: `jaxrl resume runs/ppo-cartpole-0001`."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl.commands import train
from jaxrl.core.errors import UserError


def main(argv: Sequence[str]) -> int:
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        raise UserError("jaxrl resume needs a run's folder, such as runs/ppo-cartpole-0001.")
    if argv[0] in ("-h", "--help"):
        return train.main(["--help"])
    folder, *options = argv
    return train.main(["--resume", folder, *options])
