"""Sweeps: points, each a choice of settings, trained with every seed and compared in one table.

A sweep is a table of points. Those that differ in hyperparameters alone are members of one
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

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import check
from jaxrl.runtime import configuration, continuing, run_folder, training
from jaxrl.runtime.building import build, plan, prepare
from jaxrl.runtime.command_line import Stopped
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.host import on_host
from jaxrl.runtime.members import SWEEP, members_of
from jaxrl.runtime.stopping import NotFinite
from jaxrl.sweeps import memory, results
from jaxrl.sweeps.parts import (
    Part,
    Search,
    Sweep,
    first_parts,
    members_of_points,
    next_parts,
    programs,
    read,
    segment_ends,
    structured,
)
from jaxrl.sweeps.points import Point, Values, is_hyper, points, shown


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
    parts = first_parts(config, new)
    if len(parts) == 1 and not (search.halving or search.pbt):
        folder = training.train(structured(config, new.points[0]), parts[0].members)
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
    ends = segment_ends(config, new)
    cuts = f"--halving {search.halving}" if search.halving else f"--pbt {search.pbt}"
    if (search.halving or search.pbt) and len(ends) == 1:
        raise UserError(
            f"{cuts} leaves {len(found)} points and {config.steps} steps as they are; say more."
        )
    for members in programs(config, new):
        own = structured(config, found[members[0][0]])
        group = members_of_points(config, new, members)
        _, algorithm = build(own)
        updates = [plan(dataclasses.replace(own, steps=x), algorithm).total for x in ends]
        if any(later <= earlier for earlier, later in itertools.pairwise(updates)):
            raise UserError(
                f"{cuts} cuts {config.steps} steps into segments, one of which has no update of "
                f"{algorithm.env_steps} steps; say more --steps or another {cuts.split()[0]}."
            )
        if search.pbt and (len(group) < 2 or not group.hyper):
            raise UserError(
                "--pbt needs at least 2 members of one program which differ in a hyperparameter, "
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


# -------------------------------------------------------------------------------- training


def _go_on(config: Experiment, display: Display) -> Path:
    folder = run_folder.check(config.resume)
    if not _of_several(folder):
        training.train(config)
        return _alone(folder, config, display)
    continuing.check_unchanged(config, folder)
    new = read(folder, config)
    with run_folder.locked(folder):
        return _run(folder, dataclasses.replace(config, resume=""), new, display)


def _run(folder: Path, config: Experiment, new: Sweep, display: Display) -> Path:
    """Train all parts that are not finished, segment by segment."""
    parts, done, ends = first_parts(config, new), [], segment_ends(config, new)
    for segment, end in enumerate(ends):
        for part in parts:
            try:
                _train(folder, config, new.points[part.points[0]], part, end, display)
            except (SystemExit, Stopped):
                display.warn(f"All of the sweep goes on with {run_folder.to_resume(folder)}")
                raise
            done.append(part)
            results.compare(folder, config, new.points, done, display)
            if new.search.pbt:
                results.lineage(folder, new, done)
        if segment + 1 < len(ends):
            scores = [results.final_scores(folder, part) for part in parts]
            parts = next_parts(config, new, parts, scores, segment)
    results.report(folder, new.points, done, display)
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
    config = structured(config, point)
    _, algorithm = build(config)
    whole = plan(config, algorithm)
    every = {
        f"{name}_every": getattr(whole, name) * algorithm.env_steps
        for name in ("log", "evaluate", "checkpoint")
    }
    if part.segment:
        earlier = dataclasses.replace(part, segment=part.segment - 1)
        config = dataclasses.replace(config, fork=str(folder / earlier.name), warm_start="")
    return dataclasses.replace(config, out=str(folder), name=part.name, steps=end, **every)


def _ended(run: Path) -> bool:
    summary = run_folder.summary(run)
    return bool(summary.get("finished")) or summary.get("stopped_because") == "not finite"


def _alone(folder: Path, config: Experiment, display: Display) -> Path:
    """The table of a sweep that is one run."""
    members = members_of(folder)
    labels = [{k: v for k, v in label.items() if k != "seed"} for label in members.labels]
    found = [label for i, label in enumerate(labels) if label not in labels[:i]]
    part = Part("", [found.index(label) for label in labels], members)
    if not results.evaluations(folder, part, display)[0].size:
        raise UserError(f"The log of '{folder}' has no evaluations to compare.")
    results.compare(folder, config, found, [part], display)
    results.report(folder, found, [part], display)
    return folder
