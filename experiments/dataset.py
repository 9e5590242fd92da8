"""Describe a dataset: `python experiments/dataset.py pendulum medium-replay`.

python experiments/dataset.py ENV NAME [--size 50000] [--seed 0] [--write FILE.hdf5] [--run FOLDER]

ENV: an environment's name. NAME: random, medium, expert, medium-replay, medium-expert or mixed;
demonstrations, scripted, play or conservative, where the environment has an expert; imaginary or
all-tasks in point mazes; made now if it does not exist yet; or the path of a file (Minari's,
D4RL's or Parquet). --write: write it in Minari's format. --run: the scores of the agents trained in
FOLDER, 0 for the random policy and 100 for the expert.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from jaxrl.commands import command_line
from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration

VALUES = ("size", "seed", "write", "run")


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    places, words = command_line.split_words(argv)
    options = {}
    for name, following in words.items():
        if name not in VALUES:
            raise unknown("option", f"--{name}", [f"--{n}" for n in VALUES])
        if not following:
            raise UserError(f"--{name} needs a value.")
        options[name] = following[0]
        places = [*places, *following[1:]]
    if len(places) != 2:
        raise UserError("Name an environment and a dataset, such as: pendulum medium-replay")
    size = configuration.convert("--size", options.get("size", 50_000), int)
    seed = configuration.convert("--seed", options.get("seed", 0), int)

    from jaxrl import envs
    from jaxrl.algorithms.offline.shared import making
    from jaxrl.datasets.data import profile, score

    env = envs.make(places[0])
    data = making.load(env, places[1], size, seed)
    print(json.dumps(profile(data), indent=2))
    if "write" in options:
        from jaxrl.datasets import minari_format

        minari_format.write(Path(options["write"]), data)
        print(f"Written to {options['write']}")
    if "run" in options:
        if data.references is None:
            raise UserError(f"'{data.name}' has no reference returns, so there are no scores.")
        found = returns_of(Path(options["run"]))
        print("Scores:", [round(score(x, data.references), 1) for x in found])
    return 0


def returns_of(run: Path) -> list[float]:
    """Return the mean returns in a run's summary, one for each seed; none without evaluations.

    Raises:
        UserError: if there is no such summary.
    """
    try:
        found = json.loads((run / "summary.json").read_text(encoding="utf-8"))["returns"] or []
        return [float(x) for x in found]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"'{run}' has no summary of returns ({' '.join(str(error).split())}); name the folder "
            "of a run that has ended."
        ) from error


if __name__ == "__main__":
    command_line.run(main)
