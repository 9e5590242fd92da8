"""Sweeps: points, each a choice of settings, trained with every seed and compared in one table.

A sweep is a table of points. Those that differ in hyper-parameters alone are members of one
vmapped program, with their seeds; each choice of what is structure is a program of its own, and the
members of a program are cut into chunks that fit the memory. Each chunk of a program is a run, with
a folder as every run has (a `Part`). A sweep of a single one is that run, and the table lies in its
folder. Else the sweep has a folder, which holds those of the runs, the table, and sweep.json: the
points, and all that was decided when it began.

Successive halving and population based training cut the steps into segments. The next segment of a
part is a fork of the last one, from the states of the members that were chosen, by what is in the
folders and the seed alone. So nothing has to be remembered: a sweep that is resumed takes the same
decisions, leaves finished runs alone and goes on with the others.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY, check, static
from jaxrl.runtime import configuration, continuing, memory, run_folder, selection, training
from jaxrl.runtime import log as logs
from jaxrl.runtime.building import build, plan, prepare
from jaxrl.runtime.command_line import Stopped
from jaxrl.runtime.configuration import STEPS, Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.host import on_host
from jaxrl.runtime.members import SWEEP, Members, members_of
from jaxrl.runtime.points import Point, Values, applied, is_hyper, parse, points, shown
from jaxrl.runtime.stopping import NotFinite

__all__ = ["Search", "Values", "is_sweep", "parse", "sweep"]


@dataclasses.dataclass(frozen=True)
class Search:
    """What a sweep does besides varying settings; 0 for what it does not."""

    samples: int = static(0, low=0, high=MANY)
    """Points to draw, where a setting is varied over a range."""
    halving: int = static(0, low=0, high=MANY)
    """At each rung the best one of so many points goes on (eta of successive halving)."""
    pbt: int = static(0, low=0, high=STEPS)
    """Environment steps between two exchanges of population based training."""
    chunk: int = static(0, low=0, high=MANY)
    """Members that are trained side by side at most; else as many as fit the memory."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A run of the sweep."""

    stem: str  # "" where the run's folder is the sweep's
    points: list[int]  # each member's
    members: Members
    segment: int = 0

    @property
    def name(self) -> str:
        return f"{self.stem}-segment{self.segment + 1}" if self.segment else self.stem


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What sweep.json holds."""

    varied: dict[str, Values]
    search: Search
    points: list[Point]
    chunks: list[int]  # of each program, how many members are trained side by side

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))


def is_sweep(folder: str | Path) -> bool:
    """Whether `folder` is a sweep's: of several runs, or a run's whose members' hypers differ."""
    return _of_several(Path(folder)) or bool(members_of(Path(folder)).hyper)


def _of_several(folder: Path) -> bool:
    return (folder / SWEEP).is_file()


def sweep(
    config: Experiment, varied: Mapping[str, Values] | None = None, search: Search = Search()
) -> Path:
    """Train the points of `varied` times `config.seeds`, or go on with the sweep `config.resume`,
    which knows its own; returns the sweep's folder.

    Besides what a run has the folder holds sweep.csv, a row for each member and evaluation (point,
    seed, the varied values, steps, return), the best points first, and sweep.png; with population
    based training also lineage.csv, whose state each member went on from and its hypers then.
    """
    if config.evaluate_every < 0:
        raise UserError("A sweep compares evaluations; evaluate_every must not be -1.")
    prepare(config)
    display = Display(config.quiet)
    if config.resume:
        if search != Search():
            raise UserError("A resumed sweep knows how it searches; that cannot be said again.")
        return _go_on(config, display)
    if config.fork:
        raise UserError(
            "A sweep cannot be forked into another; --warm-start takes one run's agent."
        )
    new = _planned(config, varied or {}, search, display)
    parts = _first(config, new)
    if len(parts) == 1 and not (search.halving or search.pbt):
        folder = training.train(_structured(config, new.points[0]), parts[0].members)
        return _alone(folder, config, display)
    # Every part has the same generator, whatever device the sweep is resumed on.
    generator = random.generator_name(random.key(0, config.generator))
    config = dataclasses.replace(config, generator=generator)
    with run_folder.draft(config.out, config.name) as draft:
        configuration.write(config, draft / "config.yaml")
        new.write(draft / SWEEP)
        stem = f"{run_folder.slug(config.algorithm)}-{run_folder.slug(config.env)}"
        return _run(run_folder.publish(draft, config.name, stem), config, new, display)


def _planned(
    config: Experiment, varied: Mapping[str, Values], search: Search, display: Display
) -> Sweep:
    """All that can be known to be wrong before anything runs is refused."""
    check(search)
    if search.halving and search.pbt:
        raise UserError("A sweep has --halving or --pbt, not both.")
    if search.halving == 1:
        raise UserError("halving is 1; it must be at least 2, one of how many points goes on.")
    found = points(varied, search.samples, config.seed)
    if search.pbt:  # each member of a population is a point
        found = [point for point in found for _ in range(config.seeds)]
    new = Sweep(dict(varied), search, found, [])
    ends = _ends(config, new)
    cuts = f"--halving {search.halving}" if search.halving else f"--pbt {search.pbt}"
    if (search.halving or search.pbt) and len(ends) == 1:
        raise UserError(
            f"{cuts} leaves {len(found)} points and {config.steps} steps as they are; say more."
        )
    for members in _programs(config, new):
        own = _structured(config, found[members[0][0]])
        group = _members(config, new, members)
        _, algorithm = build(own)
        updates = [plan(dataclasses.replace(own, steps=x), algorithm).total for x in ends]
        if any(later <= earlier for earlier, later in itertools.pairwise(updates)):
            raise UserError(
                f"{cuts} cuts {config.steps} steps into segments, one of which has no update of "
                f"{algorithm.frames} steps; say more --steps or another {cuts.split()[0]}."
            )
        if search.pbt and (len(group) < 2 or not group.hyper):
            raise UserError(
                "--pbt needs at least 2 members of one program which differ in a hyper-parameter, "
                "such as --vary agent.learning-rate=1e-4,1e-3."
            )
        if on_host(config.env):
            most = 1
        else:
            most = search.chunk or memory.width(own, algorithm, group, display.say)
        new.chunks.append(min(most, len(group)))
        if search.pbt and new.chunks[-1] < len(group):
            raise UserError(
                f"--pbt exchanges the states of {len(group)} members, of which {most} can be "
                "trained side by side here; take fewer, or none of --chunk."
            )
    return new


def _programs(config: Experiment, new: Sweep) -> list[list[tuple[int, int]]]:
    """The members, each a point and a seed, of every program; its points differ in hypers alone."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for i, point in enumerate(new.points):
        own = {k: v for k, v in point.items() if not is_hyper(config, k)}
        seeds = [i] if new.search.pbt else range(config.seeds)
        groups.setdefault(repr(own), []).extend((i, config.seed + seed) for seed in seeds)
    return list(groups.values())


def _structured(config: Experiment, point: Point) -> Experiment:
    """`config` with what of `point` is structure."""
    return applied(config, {k: v for k, v in point.items() if not is_hyper(config, k)})


def _members(config: Experiment, new: Sweep, members: list[tuple[int, int]]) -> Members:
    names = [name for name in new.varied if is_hyper(config, name)]
    labels = [{"seed": seed} | {k: new.points[i][k] for k in names} for i, seed in members]
    return _with_hyper(labels, names)


def _with_hyper(labels: list[dict[str, Any]], names: list[str], **more: Any) -> Members:
    hyper = {k: np.asarray([label[k] for label in labels], np.float32) for k in names}
    return Members(labels, hyper, **more)


def _first(config: Experiment, new: Sweep) -> list[Part]:
    """The runs, as they begin."""
    parts = []
    for p, (members, chunk) in enumerate(zip(_programs(config, new), new.chunks, strict=True), 1):
        for c, begin in enumerate(range(0, len(members), chunk), 1):
            own = members[begin : begin + chunk]
            stem = f"program{p}" + (f"-chunk{c}" if chunk < len(members) else "")
            parts.append(Part(stem, [point for point, _ in own], _members(config, new, own)))
    return parts


def _ends(config: Experiment, new: Sweep) -> list[int]:
    """Environment steps after which each segment ends."""
    if new.search.halving:
        return selection.rungs(config.steps, len(new.points), new.search.halving)
    if new.search.pbt:
        return [*range(new.search.pbt, config.steps, new.search.pbt), config.steps]
    return [config.steps]


# -------------------------------------------------------------------------------- training


def _go_on(config: Experiment, display: Display) -> Path:
    folder = run_folder.check(config.resume)
    if not _of_several(folder):
        training.train(config)
        return _alone(folder, config, display)
    continuing.check_unchanged(config, folder)
    new = _read(folder, config)
    with run_folder.locked(folder):
        return _run(folder, dataclasses.replace(config, resume=""), new, display)


def _read(folder: Path, config: Experiment) -> Sweep:
    try:
        data = json.loads((folder / SWEEP).read_text())
        run_folder.check_trust(folder, data, config.trust or continuing.trusted(config))
        found = [{k: _listed(v) for k, v in point.items()} for point in data["points"]]
        varied = {
            name: Values(**values | {"listed": tuple(map(_listed, values["listed"]))})
            for name, values in data["varied"].items()
        }
        new = Sweep(varied, Search(**data["search"]), found, [int(n) for n in data["chunks"]])
        check(new.search)
        if len(_programs(config, new)) != len(new.chunks) or min(new.chunks) < 1:
            raise ValueError("its chunks are not those of its points")
        for point in new.points:
            applied(config, point)
        return new
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise UserError(f"'{folder / SWEEP}' cannot be read: {said}.") from error


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _run(folder: Path, config: Experiment, new: Sweep, display: Display) -> Path:
    """Train all parts that are not finished, segment by segment."""
    parts, done, ends = _first(config, new), [], _ends(config, new)
    for segment, end in enumerate(ends):
        for part in parts:
            try:
                _train(folder, config, new.points[part.points[0]], part, end, display)
            except (SystemExit, Stopped):
                display.warn(f"All of the sweep goes on with {run_folder.to_resume(folder)}")
                raise
            done.append(part)
            _compare(folder, config, new.points, done, display)
            if new.search.pbt:
                _lineage(folder, new, done)
        if segment + 1 < len(ends):
            parts = _following(folder, config, new, parts, segment)
    _report(folder, new.points, done, display)
    return folder


def _train(
    folder: Path, config: Experiment, point: Point, part: Part, end: int, display: Display
) -> None:
    """One run to its end, or on to there; nothing for one that is there. Where no member's numbers
    are finite any more the others still go on."""
    run = folder / part.name
    if _ended(run):
        return
    own = [f"{k} {shown(v)}" for k, v in point.items() if not is_hyper(config, k)]
    display.say(", ".join([f"{part.name}: {len(part.members)} members", *own]))
    try:
        if run.exists():
            before = run_folder.read_config(run, config.trust or continuing.trusted(config))
            kept = ("trust", "debug", "quiet", *continuing.CHANGEABLE)
            now = {name: getattr(config, name) for name in kept}
            training.train(dataclasses.replace(before, resume=str(run), **now))
        else:
            training.train(_settings(folder, config, point, part, end), part.members)
    except NotFinite as error:
        display.warn(f"{part.name}: {error}")


def _settings(folder: Path, config: Experiment, point: Point, part: Part, end: int) -> Experiment:
    """The configuration of a part, whose segments log, evaluate and save as the whole run would."""
    config = _structured(config, point)
    _, algorithm = build(config)
    whole = plan(config, algorithm)
    every = {
        f"{name}_every": getattr(whole, name) * algorithm.frames
        for name in ("log", "evaluate", "checkpoint")
    }
    if part.segment:
        earlier = dataclasses.replace(part, segment=part.segment - 1)
        config = dataclasses.replace(config, fork=str(folder / earlier.name), warm_start="")
    return dataclasses.replace(config, out=str(folder), name=part.name, steps=end, **every)


def _ended(run: Path) -> bool:
    summary = run_folder.summary(run)
    return bool(summary.get("finished")) or summary.get("stopped_because") == "not finite"


# ------------------------------------------------------------------------------- segments


def _following(
    folder: Path, config: Experiment, new: Sweep, parts: list[Part], segment: int
) -> list[Part]:
    """The next segments of the parts that have just ended."""
    scores = [_scores(folder, part) for part in parts]
    if new.search.halving:
        kept = _kept(parts, scores, new.search.halving)
        children = [
            _child(part, [i for i, p in enumerate(part.points) if p in kept]) for part in parts
        ]
        return [child for child in children if child.points]
    rngs = [np.random.default_rng([config.seed, segment, i]) for i in range(len(parts))]
    return [_exchanged(*x, new) for x in zip(parts, scores, rngs, strict=True)]


def _kept(parts: list[Part], scores: list[np.ndarray], eta: int) -> set[int]:
    means = {p: np.mean(v) for p, v in _by_point(parts, scores).items()}
    order = sorted(means)
    return {order[i] for i in selection.best(np.asarray([means[p] for p in order]), eta)}


def _by_point(parts: list[Part], scores: list[np.ndarray]) -> dict[int, list[float]]:
    """Each point's scores, of the last segment that it was in."""
    found: dict[int, tuple[int, list[float]]] = {}
    for part, own in zip(parts, scores, strict=True):
        for point, score in zip(part.points, own, strict=True):
            segment, before = found.get(point, (part.segment, []))
            found[point] = part.segment, [*(before if segment == part.segment else ()), score]
    return {point: values for point, (_, values) in found.items()}


def _child(part: Part, parents: list[int]) -> Part:
    """The next segment of `part`, of those of its members that `parents` names."""
    labels = [part.members.labels[i] for i in parents]
    members = _with_hyper(labels, list(part.members.hyper), parents=parents)
    return Part(part.stem, [part.points[i] for i in parents], members, part.segment + 1)


def _exchanged(part: Part, scores: np.ndarray, rng: np.random.Generator, new: Sweep) -> Part:
    """The next segment of a population."""
    parents, hyper = selection.exchange(scores, part.members.hyper, new.varied, rng)
    labels = [
        label | {name: float(values[i]) for name, values in hyper.items()}
        for i, label in enumerate(part.members.labels)
    ]
    members = _with_hyper(labels, list(hyper), parents=parents)
    return Part(part.stem, part.points, members, part.segment + 1)


def _scores(folder: Path, part: Part) -> np.ndarray:
    """The last return of each member; NaN for one that diverged, whose run ended early, or whose
    returns are not there."""
    summary = run_folder.summary(folder / part.name)
    returns = summary.get("returns") if summary.get("finished") else None
    scores = np.asarray(returns or [np.nan] * len(part.members), float)
    scores[[int(i) for i in summary.get("diverged", ())]] = np.nan
    return scores


# ---------------------------------------------------------------------------- what it found


def _alone(folder: Path, config: Experiment, display: Display) -> Path:
    """The table of a sweep that is one run."""
    members = members_of(folder)
    labels = [{k: v for k, v in label.items() if k != "seed"} for label in members.labels]
    found = [label for i, label in enumerate(labels) if label not in labels[:i]]
    part = Part("", [found.index(label) for label in labels], members)
    if not _evaluations(folder, part, display)[0].size:
        raise UserError(f"The log of '{folder}' has no evaluations to compare.")
    _compare(folder, config, found, [part], display)
    _report(folder, found, [part], display)
    return folder


def _evaluations(folder: Path, part: Part, display: Display) -> tuple[np.ndarray, np.ndarray]:
    """Steps [K] and returns [members, K]."""
    rows = logs.read(folder / part.name / "metrics.jsonl", "evaluation", display.warn)
    return logs.series(rows, "return")


def _ranked(folder: Path, parts: list[Part]) -> dict[int, list[float]]:
    """The scores of each point, of all its seeds; the best point first: one that went on further
    before one that was left behind, then by the mean."""
    scores = _by_point(parts, [_scores(folder, part) for part in parts])
    reached = {point: part.segment for part in parts for point in part.points}
    mean = lambda p: np.mean(scores[p]) if np.isfinite(scores[p]).all() else -np.inf
    return {p: scores[p] for p in sorted(scores, key=lambda p: (-reached[p], -mean(p), p))}


def _now(found: list[Point], parts: list[Part]) -> dict[int, Point]:
    """The settings of each point in the last segment that it was in."""
    return {
        point: found[point] | {k: v for k, v in label.items() if k != "seed"}
        for part in parts
        for point, label in zip(part.points, part.members.labels, strict=True)
    }


def _compare(
    folder: Path, config: Experiment, found: list[Point], parts: list[Part], display: Display
) -> None:
    """Write sweep.csv and sweep.png, of all parts that are done."""
    from jaxrl.evaluation.plots import sweep_picture

    ranked = _ranked(folder, parts)
    rows: dict[int, list[list[Any]]] = {point: [] for point in ranked}
    for part in parts:
        steps, returns = _evaluations(folder, part, display)
        for point, label, own in zip(part.points, part.members.labels, returns, strict=False):
            now = {"seed": 0} | found[point] | label
            rows[point] += [
                [point, *now.values(), int(x), y] for x, y in zip(steps, own, strict=True)
            ]
    columns = ["point", "seed", *found[0], "steps", "return"]
    _table(folder / "sweep.csv", columns, itertools.chain(*rows.values()))
    seeds, points_now = max(map(len, ranked.values())), _now(found, parts)
    sweep_picture(
        {name: [_cell(points_now[p][name]) for p in ranked] for name in found[0]},
        [[*scores, *[np.nan] * (seeds - len(scores))] for scores in ranked.values()],
        folder / "sweep.png",
        title=f"{config.algorithm} on {config.env}",
    )


def _lineage(folder: Path, new: Sweep, parts: list[Part]) -> None:
    """Write lineage.csv: a row for each segment and member of a population."""
    names = list(new.varied)
    rows = []
    for part in parts:
        parents = part.members.parents or range(len(part.points))
        scores = _scores(folder, part)
        for i, (point, parent) in enumerate(zip(part.points, parents, strict=True)):
            now = new.points[point] | part.members.labels[i]
            values = [now[name] for name in names]
            rows.append([part.segment + 1, point, part.points[parent], *values, scores[i]])
    _table(folder / "lineage.csv", ["segment", "point", "parent", *names, "score"], rows)


def _table(path: Path, columns: list[str], rows: Iterable[list[Any]]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *([*map(_cell, row)] for row in rows)])


def _cell(value: Any) -> Any:
    return shown(value) if isinstance(value, tuple) else value


def _report(folder: Path, found: list[Point], parts: list[Part], display: Display) -> None:
    """Say the final returns, the best first."""
    points_now = _now(found, parts)
    for point, scores in itertools.islice(_ranked(folder, parts).items(), 10):
        named = ", ".join(f"{name} {shown(value)}" for name, value in points_now[point].items())
        display.say(f"{named or 'all seeds'}: final return {np.mean(scores):.5g}")
    display.say(f"Table and picture: {folder / 'sweep.csv'}, {folder / 'sweep.png'}")
