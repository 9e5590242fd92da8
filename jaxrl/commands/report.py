"""Compare runs on one page: `jaxrl report runs/ppo-cartpole-0001 runs/dqn-cartpole-0001`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from jaxrl.runtime import files


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `jaxrl report`."""

    out: str = "report.html"
    """HTML file to write: one page that needs no other file."""
    score: str = "return"
    """Metric of the evaluations that is compared."""
    bounds: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    """ENVIRONMENT=LOW,HIGH, such as cartpole=0,500: range of scores by which they are pooled over
    environments. Known for the environments of the built-in suites."""


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl report RUN_OR_SWEEP [...] [options]"
    folders, config = command_line.positionals_and_options(
        argv, Options, usage, command_line.is_folder, count=0
    )
    from jaxrl.reporting import page, runs

    paths = [run for folder in folders for run in runs.run_folders(Path(folder))]
    for path in paths:
        if sum(path.resolve() == other.resolve() for other in paths) > 1:
            raise UserError(f"'{path}' is named twice.")
    text = page.render_page(
        [runs.read(path, config.score) for path in paths], config.score, config.bounds
    )
    out = Path(config.out)
    with files.explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(out, text)
    print(f"Written to {out}")
    return 0
