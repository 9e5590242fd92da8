"""Train a suite of agents in the worlds of a benchmark, and write table and learning curves:

python experiments/benchmark.py SUITE [--agents A ...] [--worlds W ...] [--seeds N]
                                [--plan] [--pages]

A suite is a file `experiments/suites/<name>.yaml` (or any such file) that says which agents are
trained where, for how many steps, with one setting for all of its worlds. Each pair of an agent and
a world is a run folder in `runs/benchmarks/<suite>`: what is finished is not trained again, what
was interrupted goes on. Every finished run is a record in `docs/benchmarks/<suite>.json`, from
which the page `<suite>.md` and the pictures beside it are written.

--plan: what it would take, and nothing else. --pages: write the page anew, and train nothing.
--seeds: other than the suite says; such a run has a folder of its own, and is not recorded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # run as a script, only this file's folder is there
    sys.path.insert(0, str(ROOT))

from experiments.evidence.records import commit  # noqa: E402
from jaxrl.core.errors import UserError, unknown  # noqa: E402
from jaxrl.runtime import command_line, configuration, run_folder  # noqa: E402
from jaxrl.runtime.configuration import Experiment  # noqa: E402

SUITES, PAGES = ROOT / "experiments" / "suites", ROOT / "docs" / "benchmarks"
EVALUATIONS = 20  # of a run, evenly spaced
FRAMES, HEIGHT = 8, 120  # of a strip: how many, and in pixels


@dataclasses.dataclass(frozen=True)
class World:
    """Where agents are trained. Scores from 0 at `low` to 1 at `high` are pooled over worlds.

    metrics: what else the world says of an episode that the page reports.
    strip: steps between two frames of a policy at work, of which the page shows a row; 0 for none.
    """

    env: str
    low: float
    high: float
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    strip: int = 0


@dataclasses.dataclass(frozen=True)
class Entry:
    """An agent of a suite: how long it is trained, and where, if not everywhere. `minutes`: what a
    world took on two cores of a common machine, for the plan."""

    algorithm: str
    steps: int
    seeds: int
    minutes: float
    agent: dict[str, Any] = dataclasses.field(default_factory=dict)
    worlds: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Published:
    """What others report, with their own budget."""

    who: str
    steps: int
    returns: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Suite:
    """Agents and worlds of a benchmark. `episodes`: of each evaluation."""

    name: str
    title: str
    text: str
    episodes: int
    worlds: dict[str, World]
    agents: dict[str, Entry]
    published: tuple[Published, ...] = ()


@dataclasses.dataclass(frozen=True)
class Run:
    """An agent in a world, with all of its seeds: one run folder."""

    agent: str
    world: str
    config: Experiment
    minutes: float

    @property
    def folder(self) -> Path:
        return Path(self.config.out) / self.config.name


def main(argv: Sequence[str]) -> int:
    options = parsed(argv)
    suite = read(options.suite)
    chosen = runs(suite, options.agents, options.worlds, options.seeds)
    if not options.pages:
        print(plan(chosen), flush=True)
        if options.plan:
            return 0
        for run in chosen:
            train(run)
            if not options.seeds:
                record(suite, run)
                write_page(suite)
    write_page(suite)
    return 0


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite")
    parser.add_argument("--agents", nargs="+", default=())
    parser.add_argument("--worlds", nargs="+", default=())
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--pages", action="store_true")
    return parser.parse_args(argv)


# --------------------------------------------------------------------------------- what to run


def read(name: str) -> Suite:
    """The suite of a file, or of that name. Raises `UserError` for what is none."""
    path = Path(name) if configuration.is_file(name) else SUITES / f"{name}.yaml"
    if not path.exists():
        raise unknown("suite", name, sorted(x.stem for x in SUITES.glob("*.yaml")))
    data = configuration.load(path)
    fields = {x.name for x in dataclasses.fields(Suite)} - {"name"}
    for key in data:
        if key not in fields:
            raise unknown(f"key of the suite '{path}'", key, fields)
    make = lambda kind, what, values: {
        key: _made(kind, f"{what} '{key}' of '{path}'", value) for key, value in values.items()
    }
    published = [
        _made(Published, f"a published result of '{path}'", x) for x in data.pop("published", [])
    ]
    data["worlds"] = make(World, "the world", data.get("worlds", {}))
    data["agents"] = make(Entry, "the agent", data.get("agents", {}))
    return _made(
        Suite, f"the suite '{path}'", data | {"name": path.stem, "published": tuple(published)}
    )


def _made(kind: type, what: str, values: Any) -> Any:
    known = {x.name: x for x in dataclasses.fields(kind)}
    for key in values:
        if key not in known:
            raise unknown(f"setting of {what}", key, known)
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except TypeError as error:
        raise UserError(f"Of {what} something is missing: {error}.") from None


def runs(
    suite: Suite, agents: Sequence[str] = (), worlds: Sequence[str] = (), seeds: int = 0
) -> list[Run]:
    """What is trained, in the order of the suite. Raises `UserError` for names that are not in
    it."""
    for what, names, known in (("agent", agents, suite.agents), ("world", worlds, suite.worlds)):
        for name in names:
            if name not in known:
                raise unknown(f"{what} of the suite '{suite.name}'", name, known)
    found = []
    for agent, entry in suite.agents.items():
        for world in entry.worlds or suite.worlds:
            if world not in suite.worlds:
                raise unknown(
                    f"world of '{agent}' in the suite '{suite.name}'", world, suite.worlds
                )
            if (agents and agent not in agents) or (worlds and world not in worlds):
                continue
            number = seeds or entry.seeds
            place, more = suite.worlds[world], f"-{seeds}-seeds" if seeds else ""
            config = configuration.experiment(
                {
                    "algorithm": entry.algorithm,
                    "env": place.env,
                    "env_params": place.env_params,
                    "steps": entry.steps,
                    "seeds": number,
                    "evaluate_every": entry.steps // EVALUATIONS,
                    "evaluate_episodes": suite.episodes,
                    "out": str(Path("runs") / "benchmarks" / suite.name),
                    "name": f"{run_folder.slug(agent)}-{run_folder.slug(world)}{more}",
                    "agent": entry.agent,
                }
            )
            found.append(Run(agent, world, config, entry.minutes * number / entry.seeds))
    return found


def plan(chosen: Sequence[Run]) -> str:
    """What is still to be trained, a line each, and how long it takes."""
    from jaxrl.runtime import continuing

    lines, left = [], 0.0
    for run in chosen:
        finished = run.folder.exists() and continuing.is_finished(run.folder)
        left += 0 if finished else run.minutes
        state = "done" if finished else f"{run.minutes:.0f} min"
        steps = f"{run.config.steps:,} steps, {run.config.seeds} seeds"
        lines.append(f"{run.agent:16} {run.world:20} {steps:30} {state}")
    return "\n".join([*lines, f"{left / 60:.1f} hours on two cores are left."])


def train(run: Run) -> None:
    """Train, or go on with, what is not finished."""
    from jaxrl.runtime import training

    config = run.config
    if run.folder.exists():
        config = dataclasses.replace(run_folder.read_config(run.folder), resume=str(run.folder))
    training.train(config)


# --------------------------------------------------------------------------------- what came out


def record(suite: Suite, run: Run) -> None:
    """Put a finished run's curve and what made it into the suite's records, in place of an older
    one."""
    from jaxrl.runtime import log

    rows = log.read(run.folder / "metrics.jsonl", "evaluation", print)
    steps, returns = log.series(rows, "return")
    world = suite.worlds[run.world]
    summary = json.loads((run.folder / "summary.json").read_text())
    found = {
        "agent": run.agent,
        "world": run.world,
        "config": configuration.to_dict(run.config),
        "steps": steps.astype(int),
        "returns": returns,
        "metrics": {name: log.series(rows, name)[1][:, -1] for name in world.metrics},
        "seconds": summary["seconds"],
        "versions": summary["versions"],
        "device": summary["device"],
        "generator": summary["generator"],
        "commit": commit(ROOT),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    same = lambda old: (old["agent"], old["world"]) == (run.agent, run.world)
    kept = [old for old in records(suite) if not same(old)]
    path = PAGES / f"{suite.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(log.jsonable(x)) for x in [*kept, found])
    path.write_text(f"[\n{lines}\n]\n")
    if world.strip:
        draw(run, world.strip, PAGES / strip_of(suite, run.agent, run.world))


def strip_of(suite: Suite, agent: str, world: str) -> str:
    return f"{suite.name}-{world}-{run_folder.slug(agent)}.png"


def draw(run: Run, every: int, path: Path) -> None:
    """Write a strip of the policy of the seed with the median return, from the middle of a greedy
    episode on; from earlier where it ends too soon."""
    from jaxrl.core import random
    from jaxrl.evaluation import render
    from jaxrl.runtime import continuing

    summary = json.loads((run.folder / "summary.json").read_text())
    middle = np.argsort(summary["returns"])[len(summary["returns"]) // 2]
    trained, policies = continuing.load_all(run.folder)
    frames = render.record(trained.env, policies[middle], random.key(0)).frames
    start = max(0, min(len(frames) // 2, len(frames) - FRAMES * every))
    shown = frames[start::every][:FRAMES]
    render.write_png(render.side_by_side(shown, HEIGHT), path)


def records(suite: Suite) -> list[dict[str, Any]]:
    path = PAGES / f"{suite.name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def curve(found: dict[str, Any]) -> np.ndarray:
    """The returns of a record [seeds, evaluations], NaN from where on a seed diverged."""
    return np.asarray(found["returns"], np.float64)


def finals(found: dict[str, Any]) -> np.ndarray:
    """The last evaluation's return of each seed; the lowest of all where a seed diverged."""
    last = curve(found)[:, -1]
    return np.where(np.isfinite(last), last, np.nanmin(curve(found)))


def write_page(suite: Suite) -> None:
    """The suite's page, and a picture of each world's learning curves beside it."""
    from jaxrl.evaluation.plots import learning_curves

    known = {(x["agent"], x["world"]): x for x in records(suite)}
    if not known:
        return
    lines = [
        "<!-- Written by experiments/benchmark.py from the records; do not edit. -->",
        "",
        f"# {suite.title}",
        "",
        suite.text.strip(),
        "",
        f"Greedy returns of {suite.episodes} episodes after the last step: the interquartile mean "
        "over seeds and its 95 % interval (stratified bootstrap; with so few seeds it is too "
        "narrow).",
        "",
        "| agent | steps | seeds | " + " | ".join(suite.worlds) + " | all |",
        "| --- |" + " ---: |" * (len(suite.worlds) + 3),
    ]
    for agent in suite.agents:
        mine = {world: x for (who, world), x in known.items() if who == agent}
        if mine:
            lines.append(row(suite, agent, mine))
    for one in suite.published:
        cells = [f"{one.returns[w]:g}" if w in one.returns else "" for w in suite.worlds]
        lines.append(f"| *{one.who}* | {one.steps:,} | | " + " | ".join(cells) + " | |")
    for world in suite.worlds:
        curves = {
            agent: (x["steps"], curve(x)) for (agent, place), x in known.items() if place == world
        }
        if curves:
            picture = f"{suite.name}-{world}.svg"
            where = PAGES / picture
            learning_curves(curves, where, title=world, ylabel="greedy return", robust=True)
            lines += ["", f"## {world}", "", f"![Learning curves in {world}]({picture})"]
            lines += behaviour(suite, world, [x for x in known.values() if x["world"] == world])
    lines += ["", "## What made them", "", *made_by(known.values())]
    (PAGES / f"{suite.name}.md").write_text("\n".join(lines) + "\n")


def behaviour(suite: Suite, world: str, found: Sequence[dict[str, Any]]) -> list[str]:
    """What a world says of its last episodes, a row for each agent, and a strip of each."""
    place, lines = suite.worlds[world], []
    if place.metrics:
        lines += ["", "| agent | " + " | ".join(place.metrics) + " |"]
        lines += ["| --- |" + " ---: |" * len(place.metrics)]
        for one in found:
            values = [np.asarray(one["metrics"][name], np.float64) for name in place.metrics]
            cells = " | ".join(estimate(x, "{:.2f}") for x in values)
            lines.append(f"| {one['agent']} | {cells} |")
    for one in found if place.strip else []:
        picture = strip_of(suite, one["agent"], world)
        lines += ["", f"{one['agent']}, every {place.strip} steps:", ""]
        lines += [f"![{one['agent']} in {world}]({picture})"]
    return lines


def row(suite: Suite, agent: str, mine: dict[str, dict[str, Any]]) -> str:
    """A line of the table: one world each, and all of them on their common scale."""
    cells, scores = [], []
    for world, place in suite.worlds.items():
        if world not in mine:
            cells.append("")
            continue
        values = finals(mine[world])
        cells.append(estimate(values, "{:.3g}"))
        scores.append((values - place.low) / (place.high - place.low))
    first = next(iter(mine.values()))
    whole = len(scores) == len(suite.worlds) and len({len(x) for x in scores}) == 1
    together = estimate(np.stack(scores, -1), "{:.2f}") if whole and len(scores) > 1 else ""
    steps, seeds = first["config"]["steps"], first["config"]["seeds"]
    return f"| {agent} | {steps:,} | {seeds} | " + " | ".join(cells) + f" | {together} |"


def estimate(scores: np.ndarray, form: str) -> str:
    """The interquartile mean of scores [seeds] or [seeds, worlds] with its interval."""
    from jaxrl.evaluation.statistics import interquartile_mean, stratified_bootstrap

    if len(scores) < 2:
        return form.format(float(scores.mean()))
    found = stratified_bootstrap(interquartile_mean, scores)
    return f"{form} [{form}, {form}]".format(found.estimate, found.low, found.high)


def made_by(found: Any) -> list[str]:
    """The command, versions and hours of the records."""
    found = list(found)
    hours = sum(x["seconds"]["training"] + x["seconds"]["compiling"] for x in found) / 3600
    versions = sorted({f"jax {x['versions']['jax']}" for x in found})
    commits = sorted({x["commit"] for x in found})
    return [
        f"{len(found)} runs, {hours:.1f} hours, {', '.join(versions)}, commits "
        f"{', '.join(commits)}. Settings and every seed's curve are in the file of the same name "
        "that ends in `.json`.",
    ]


if __name__ == "__main__":
    command_line.run(main)
