"""One page of several runs: `jaxrl report runs/ppo-cartpole-0001 runs/dqn-cartpole-0001`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxrl.core.errors import UserError
from jaxrl.runtime import command_line


@dataclasses.dataclass(frozen=True)
class Options:
    """How runs are reported."""

    out: str = "report.html"
    """The file to write: one page that needs nothing else."""
    score: str = "return"
    """The metric of the evaluations that is compared."""
    bounds: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    """Environment=LOW,HIGH, such as cartpole=0,500: between these, scores are pooled over
    environments. Those of the shipped benchmarks are known."""


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl report RUN or SWEEP [...] [options]"
    folders, config = command_line.places_and_options(
        argv, Options, usage, command_line.is_folder, places=0
    )
    from jaxrl.reporting import page, runs

    places = [run for folder in folders for run in runs.within(Path(folder))]
    for place in places:
        if sum(place.resolve() == other.resolve() for other in places) > 1:
            raise UserError(f"'{place}' is named twice.")
    read = [runs.read(place, config.score) for place in places]
    text = page.written(read, config.score, config.bounds)
    out = Path(config.out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
    except OSError as error:
        raise UserError(f"'{out}' cannot be written: {error.strerror}.") from error
    print(f"Written to {out}")
    return 0
