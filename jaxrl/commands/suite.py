"""Train a suite of agents in the environments of a benchmark, and write table and learning curves:

jaxrl suite SUITE [--agents A ...] [--environments W ...] [--seeds N] [--out FOLDER]
                      [--missing] [--plan] [--pages]

A suite is one of `jaxrl list suites`, or a YAML file of your own, that says which agents are
trained where, for how many steps, with one setting for all of its environments. Each pair of an
agent and an environment is a run folder in `runs/benchmarks/<suite>`: what is finished is not
trained again, what was interrupted goes on. Every finished run is a record in
`docs/suites/<suite>.json` (or another folder, by --out), from which the page `<suite>.md` and the
pictures beside it are written.

--missing: only what has no record of these settings yet, wherever it was trained.
--plan: what it would take, and nothing else. --pages: write the page anew, and train nothing.
--seeds: other than the suite says; such a run has a folder of its own, and is not recorded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import jaxrl
from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration, git, run_folder
from jaxrl.runtime.configuration import Experiment
from jaxrl.suites import page
from jaxrl.suites.page import Record
from jaxrl.suites.suite import Run, Suite, read, runs

FRAMES, HEIGHT = 8, 120  # of a strip: how many, and in pixels


def main(argv: Sequence[str]) -> int:
    options = parsed(argv)
    suite, out = read(options.suite), options.out
    chosen = runs(suite, options.agents, options.environments, options.seeds)
    if options.missing:
        known = recorded(suite, out)
        chosen = [run for run in chosen if (run.agent, run.environment) not in known]
    if not options.pages:
        print(plan(chosen), flush=True)
        if options.plan:
            return 0
        for run in chosen:  # before any of them takes its hour
            check(run)
        for run in chosen:
            code = git.commit(Path(jaxrl.__file__).parents[1])
            known = finished(run) and (run.agent, run.environment) in recorded(suite, out)
            train(run)
            if not options.seeds and not known:  # what is known keeps its commit and its date
                record(suite, run, code, out)
                page.write(suite, records(suite, out), out)
    page.write(suite, records(suite, out), out)
    return 0


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite")
    parser.add_argument("--agents", nargs="+", default=())
    parser.add_argument("--environments", nargs="+", default=())
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("docs", "benchmarks"))
    return parser.parse_args(argv)


def plan(chosen: Sequence[Run]) -> str:
    """What is still to be trained, a line each, and how long it takes."""
    lines, left = [], 0.0
    for run in chosen:
        done = finished(run)
        left += 0 if done else run.minutes
        state = "done" if done else f"{run.minutes:.0f} min"
        steps = f"{run.config.steps:,} steps, {run.config.seeds} seeds"
        lines.append(f"{run.agent:16} {run.environment:20} {steps:30} {state}")
    return "\n".join([*lines, f"{left / 60:.1f} hours on two cores are left."])


def finished(run: Run) -> bool:
    """Whether it is trained, as the suite has it now."""
    from jaxrl.runtime import continuing

    try:
        check(run)
    except UserError:
        return False
    return run.folder.exists() and continuing.is_finished(run.folder)


def resumed(run: Run) -> Experiment:
    """The configuration by which the run goes on in its folder."""
    generator = run_folder.read_config(run.folder).generator
    return dataclasses.replace(run.config, resume=str(run.folder), generator=generator)


def check(run: Run) -> None:
    """Raises `UserError` where the run's folder is of other settings."""
    from jaxrl.runtime import continuing

    if not run.folder.exists():
        return
    try:
        continuing.check_unchanged(resumed(run), run.folder)
    except UserError as error:
        raise UserError(f"{error} To train anew, move '{run.folder}' away.") from None


def train(run: Run) -> None:
    """Train, or go on with, what is not finished."""
    from jaxrl.runtime import training

    training.train(resumed(run) if run.folder.exists() else run.config)


def record(suite: Suite, run: Run, code: str, out: Path) -> None:
    """Put a finished run's curve and what made it, the commit `code` among it, into the suite's
    records in `out`, in place of an older one."""
    from jaxrl.runtime import log

    rows = log.read(run.folder / "metrics.jsonl", "evaluation", print)
    steps, returns = log.series(rows, "return")
    environment = suite.environments[run.environment]
    summary = run_folder.summary(run.folder)
    found = {
        "agent": run.agent,
        "environment": run.environment,
        "config": configuration.to_dict(run.config),
        "steps": steps.astype(int),
        "returns": returns,
        "metrics": {name: log.series(rows, name)[1][:, -1] for name in environment.metrics},
        "seconds": summary["seconds"],
        "versions": summary["versions"],
        "device": summary["device"],
        "generator": summary["generator"],
        "commit": code,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    kept = [old for old in records(suite, out) if place(old) != place(found)]
    path = out / f"{suite.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(log.jsonable(x)) for x in [*kept, found])
    path.write_text(f"[\n{lines}\n]\n")
    if environment.strip:
        draw(run, found, environment.strip, out / page.strip_of(suite, run.agent, run.environment))


def place(found: Record) -> tuple[str, str]:
    return found["agent"], found["environment"]


def draw(run: Run, found: Record, every: int, path: Path) -> None:
    """Write a strip of the policy of the seed with the median return, from the middle of a greedy
    episode on; from earlier where it ends too soon."""
    from jaxrl.core import random
    from jaxrl.evaluation import render
    from jaxrl.runtime import continuing

    middle = np.argsort(page.finals(found))[run.config.seeds // 2]
    trained = continuing.load(run.folder, int(middle))
    frames = render.record(trained.env, trained.policy, random.key(0)).frames
    start = max(0, min(len(frames) // 2, len(frames) - FRAMES * every))
    shown = frames[start::every][:FRAMES]
    render.write_png(render.side_by_side(shown, HEIGHT), path)


def records(suite: Suite, out: Path) -> list[Record]:
    path = out / f"{suite.name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def recorded(suite: Suite, out: Path) -> set[tuple[str, str]]:
    """Agents and environments that have a record of the settings that the suite has now."""
    found = records(suite, out)
    return set(map(place, found)) - page.outdated(suite, found)
