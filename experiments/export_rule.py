"""Write the rule that a run of ta_lpg discovered to a file, for `algorithm: lpg`:

python experiments/export_rule.py runs/ta_lpg-random_mdp-0001 rule.npz [--member N] [--trust]

--trust imports code outside of jaxrl that the run names; importing it runs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxrl.commands import command_line
from jaxrl.core.errors import UserError


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the script."""

    member: int = 0
    """Index of the member among those trained side by side."""
    trust: bool = False
    """Import code outside of jaxrl that the run names."""


def main(argv: Sequence[str]) -> int:
    usage = "export_rule.py RUN FILE [options]"
    (run, file), config = command_line.positionals_and_options(
        argv, Options, usage, lambda word: True, count=2
    )
    export(Path(run), Path(file), config)
    return 0


def export(folder: Path, path: Path, config: Options) -> None:
    """Write the rule of one member of the run in `folder` to `path`."""
    from jaxrl.algorithms.meta import lpg
    from jaxrl.runtime import continuing

    # A search for rules has the policy of a learner, whose state holds the rule.
    state = continuing.load(folder, config.member, config.trust).policy.state
    if not isinstance(state, lpg.State):
        raise UserError(f"'{folder}' is not a run that learned a rule.")
    lpg.save_rule(path, state.rule)
    print(f"wrote {path}")


if __name__ == "__main__":
    command_line.run(main)
