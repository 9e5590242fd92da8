"""Train the algorithms of a suite in its environments, and write its table and learning curves:

jaxrl suite SUITE [--algorithms A ...] [--environments E ...] [--seeds N] [--out FOLDER]
                  [--missing] [--long] [--plan] [--pages]

A suite is one of `jaxrl list suites`, or a YAML file of your own. It says which algorithms are
trained where and for how many steps, each with one setting for all environments unless the suite
says what differs in one. Each pair of an
algorithm and an environment is a run folder in `runs/suites/SUITE`: finished runs are not trained
again, interrupted ones continue. A run that the suite marks as too long for two cores is left out
without --long, and one that cannot start, since its package is not installed, is reported and
skipped. Every finished run is a record in `docs/suites/SUITE.json`
(--out: in another folder), from which the page `SUITE.md` and the pictures beside it are written.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jaxrl
from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration, files, git, processes, run_folder
from jaxrl.runtime.configuration import Experiment
from jaxrl.suites import page
from jaxrl.suites.bsuite import SCORES
from jaxrl.suites.page import Record
from jaxrl.suites.suite import Run, Suite, read, runs

FRAMES, HEIGHT = 8, 120  # number of frames in a strip, and its height in pixels


def main(argv: Sequence[str]) -> int:
    options = parse_arguments(argv)
    suite, out = read(options.suite), options.out
    chosen = runs(suite, options.algorithms, options.environments, options.seeds)
    if options.missing:
        known = current_records(suite, out)
        chosen = [run for run in chosen if record_key_of(run) not in known]
    if options.long:
        chosen = [dataclasses.replace(run, too_long=False) for run in chosen]
    if not (options.pages or options.plan):
        processes.refuse_several("A suite")
    if not options.pages:
        print(plan(chosen), flush=True)
        if options.plan:
            return 0
        chosen = [run for run in chosen if not run.too_long]
        for run in chosen:  # so that a wrong folder is found before any run takes its hour
            check(run)
    failed = [] if options.pages else train_all(suite, chosen, out, record=not options.seeds)
    page.write(suite, read_records(suite, out), out)
    for run, error in failed:
        print(f"Not run: {run.algorithm} in {run.environment}: {error}", flush=True)
    return 2 if failed else 0


def train_all(
    suite: Suite, chosen: Sequence[Run], out: Path, *, record: bool
) -> list[tuple[Run, UserError]]:
    """Train the runs one after another; return those that could not start, and why.

    record: whether to record finished runs and write the page after each of them.
    """
    failed = []
    for run in chosen:
        code = git.commit(Path(jaxrl.__file__).parents[1])
        known = is_finished(run) and record_key_of(run) in current_records(suite, out)
        try:
            train(run)
        except UserError as error:  # such as a package that is not installed
            print(f"{run.algorithm} in {run.environment}: {error}", flush=True)
            failed.append((run, error))
            continue
        if record and not known:  # a current record keeps its commit and its date
            write_record(suite, run, code, out)
            page.write(suite, read_records(suite, out), out)
    return failed


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "jaxrl suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,  # the description has it
    )
    parser.add_argument("suite", help="name of a suite, or its YAML file")
    parser.add_argument(
        "--algorithms", nargs="+", default=(), help="train these only (names in the suite)"
    )
    parser.add_argument(
        "--environments", nargs="+", default=(), help="train in these only (names in the suite)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help="another number of seeds; such runs have folders of their own and are not recorded",
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="train only what has no record of the suite's present settings",
    )
    parser.add_argument(
        "--long", action="store_true", help="train also the runs that are too long for two cores"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print the runs and hours; train nothing"
    )
    parser.add_argument("--pages", action="store_true", help="write the page again; train nothing")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("docs", "suites"),
        help="folder of the records and pages (default: docs/suites)",
    )
    return parser.parse_args(argv)


def plan(chosen: Sequence[Run]) -> str:
    """Return a line for each run, with the time that is left, and the hours of all that is left."""
    lines, left = [], 0.0
    width = max([16, *(len(run.algorithm) for run in chosen)])
    for run in chosen:
        done = is_finished(run)
        left += 0 if done or run.too_long else run.minutes
        state = "done" if done else f"{run.minutes:.0f} min"
        if run.too_long and not done:
            state += ", too long for two cores: left out (--long trains it)"
        steps = f"{run.config.steps:,} steps, {run.config.seeds} seeds"
        lines.append(f"{run.algorithm:{width}} {run.environment:23} {steps:30} {state}")
    return "\n".join([*lines, f"{left / 60:.1f} hours on two cores are left."])


def is_finished(run: Run) -> bool:
    """Return whether the run is trained, under the suite's present settings."""
    from jaxrl.runtime import continuing

    try:
        check(run)
    except UserError:
        return False
    return run.folder.exists() and continuing.is_finished(run.folder)


def resume_config(run: Run) -> Experiment:
    """Return the configuration by which the run continues in its folder."""
    from jaxrl.runtime import continuing

    generator = run_folder.read_config(run.folder).generator
    config = dataclasses.replace(run.config, resume=str(run.folder), generator=generator)
    if run.first is None:
        return config
    first = continuing.first_of(config, run.first)  # whose folder stands for its file by now
    return dataclasses.replace(config, warm_start=str(Path(first.out) / first.name))


def check(run: Run) -> None:
    """Raise `UserError` if the run's folder has other settings than the suite."""
    from jaxrl.runtime import continuing

    if not run.folder.exists():
        return
    try:
        continuing.check_unchanged(resume_config(run), run.folder)
    except UserError as error:
        raise UserError(f"{error} To train again, move '{run.folder}' away.") from None


def train(run: Run) -> None:
    """Train the run, or continue it if it is not finished."""
    from jaxrl.runtime import training

    if run.first is not None:
        path = Path(run.config.warm_start)
        with files.explain_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            configuration.write(run.first, path)
    training.train(resume_config(run) if run.folder.exists() else run.config)


def write_record(suite: Suite, run: Run, code: str, out: Path) -> None:
    """Put a finished run's curve, settings and `code` (its commit) into the records in `out`.

    It replaces an older record of the same algorithm and environment.
    """
    from jaxrl.runtime import log

    rows = log.read(run.folder / "metrics.jsonl", "evaluation", print)
    steps, returns = log.series(rows, "return")
    environment = suite.environments[run.environment]
    summary = run_folder.summary(run.folder)
    solved = {}
    if environment.score:
        trained = log.read(run.folder / "metrics.jsonl", "train", print)
        solved["solved"] = SCORES[environment.score](trained, environment.env_params)
    found = {
        "algorithm": run.algorithm,
        "environment": run.environment,
        "config": configuration.to_dict(run.config),
        "steps": steps.astype(int),
        "returns": returns,
        "metrics": {name: log.series(rows, name)[1][:, -1] for name in environment.metrics},
        **solved,
        **data_of(run),
        "seconds": summary["seconds"],
        "versions": summary["versions"],
        "device": summary["device"],
        "generator": summary["generator"],
        "commit": code,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    kept = [old for old in read_records(suite, out) if record_key(old) != record_key(found)]
    path = out / f"{suite.name}.json"
    lines = ",\n".join(json.dumps(log.to_jsonable(x)) for x in [*kept, found])
    with files.explain_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, f"[\n{lines}\n]\n")
    if environment.strip:
        draw_strip(
            run,
            found,
            environment.strip,
            out / page.strip_name(suite, run.algorithm, run.environment),
        )


def data_of(run: Run) -> dict[str, Any]:
    """Return the mean return of the run's dataset as a part of its record, if it has one.

    Datasets by name are trained where they are first used, and come out otherwise on another
    machine; so returns can be compared only beside those of the data.
    """
    data = configuration.to_dict(run.config)["agent"].get("data")
    if not isinstance(data, dict) or not data.get("name") or "size" not in data:
        return {}
    from jaxrl import envs
    from jaxrl.algorithms.offline.shared import making
    from jaxrl.datasets.transitions import returns

    env = envs.make(run.config.env, **run.config.env_params)
    dataset = making.load(env, data["name"], data["size"], data["seed"])
    return {"data_return": float(np.mean(returns(dataset.transitions)))}


def record_key(found: Record) -> tuple[str, str]:
    return found["algorithm"], found["environment"]


def record_key_of(run: Run) -> tuple[str, str]:
    return run.algorithm, run.environment


def draw_strip(run: Run, found: Record, every: int, path: Path) -> None:
    """Draw a strip of frames of the policy of the seed with the median return.

    It begins in the middle of a greedy episode, or earlier if the episode would end too soon.
    """
    from jaxrl.core import random
    from jaxrl.evaluation import render
    from jaxrl.runtime import continuing

    middle = np.argsort(page.finals(found))[run.config.seeds // 2]
    trained = continuing.load(run.folder, int(middle))
    frames = render.record(trained.env, trained.policy, random.key(0)).frames
    start = max(0, min(len(frames) // 2, len(frames) - FRAMES * every))
    shown = frames[start::every][:FRAMES]
    render.write_png(render.side_by_side(shown, HEIGHT), path)


def read_records(suite: Suite, out: Path) -> list[Record]:
    path = out / f"{suite.name}.json"
    if not path.exists():
        return []
    try:
        found = files.read_json(path)
        if not isinstance(found, list) or not all(map(_is_record, found)):
            raise ValueError("it must be a list of the records that jaxrl suite writes")
    except (OSError, ValueError) as error:
        raise UserError(f"The records in '{path}' cannot be read: {error}.") from error
    return found


RECORDED = {
    "algorithm": str, "environment": str, "config": dict, "steps": list, "returns": list,
    "metrics": dict, "seconds": dict, "versions": dict, "device": str, "generator": str,
    "commit": str, "date": str,
}  # fmt: skip


def _is_record(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(found.get(name), kind) for name, kind in RECORDED.items()
    )


def current_records(suite: Suite, out: Path) -> set[tuple[str, str]]:
    """Return the (algorithm, environment) pairs with a record of the suite's present settings."""
    found = read_records(suite, out)
    return set(map(record_key, found)) - page.outdated_records(suite, found).keys()
