"""Sweeps: points, each a choice of settings, trained with every seed and compared in one table.

A sweep is a table of points. Points that differ only in hyperparameters are members of one vmapped
program, with their seeds; each choice of the other settings is a program of its own. The members
of a program are cut into chunks that fit the memory, and each chunk is a run with a folder, as
every run has (a `Part`). A sweep of one chunk is that run, and its folder holds the table.
Otherwise the sweep has a folder with those of its runs, the table, and sweep.json: the points, and
all that was decided when the sweep began.

Successive halving and population based training cut the steps into segments. The next segment of a
part is a fork of the last one, from the states of the members that were chosen. The choice depends
only on the contents of the folders and the seed, so nothing else has to be remembered: a resumed
sweep makes the same choices, leaves finished runs alone and continues the others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import check
from jaxrl.runtime import configuration, continuing, files, run_folder, training
from jaxrl.runtime.building import build, configure_jax, plan
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.errors import Stopped
from jaxrl.runtime.members import SWEEP, has_many_runs, read_members
from jaxrl.runtime.stopping import NotFinite
from jaxrl.sweeps import memory, results
from jaxrl.sweeps.parts import (
    Part,
    Search,
    Sweep,
    apply_structure,
    first_parts,
    members_of_points,
    next_parts,
    programs,
    read,
    segment_ends,
)
from jaxrl.sweeps.points import Point, Values, format_value, is_hyper, points


def sweep(
    config: Experiment, varied: Mapping[str, Values] | None = None, search: Search = Search()
) -> Path:
    """Train the points of `varied` with `config.seeds`, or resume the sweep `config.resume`.

    Besides the files of a run, the folder holds sweep.csv, a row for each member and evaluation
    (point, seed, the varied values, steps, return) with the best points first, ranking.csv, a row
    for each point (mean final return over seeds, its interval, number of seeds), and sweep.png.
    With population based training it also holds lineage.csv: the member whose state each one
    continued from, and its hypers then.

    Returns:
        The sweep's folder.
    """
    if config.evaluate_every < 0:
        raise UserError("evaluate_every is -1; a sweep compares evaluations, so it needs some.")
    configure_jax(config)
    display = Display(config.quiet)
    if config.resume:
        if search != Search():
            raise UserError("A resumed sweep searches as before; leave out its search options.")
        return _resume(config, display)
    if config.fork:
        raise UserError("A sweep cannot be forked; --warm-start takes over one run's agent.")
    new = _plan(config, varied or {}, search, display)
    parts = first_parts(config, new)
    if len(parts) == 1 and not (search.halving or search.pbt):
        folder = training.train(apply_structure(config, new.points[0]), parts[0].members)
        return _compare_members(folder, config, display)
    # Recorded, so that every part has the same generator whatever device resumes the sweep.
    generator = random.generator_name(random.key(0, config.generator))
    config = dataclasses.replace(config, generator=generator)
    with run_folder.draft(config.out, config.name) as draft:
        with files.explained(draft):
            configuration.write(config, draft / "config.yaml")
            new.write(draft / SWEEP)
        stem = f"{run_folder.slug(config.algorithm)}-{run_folder.slug(config.env)}"
        return _run(run_folder.publish(draft, config.name, stem), config, new, display)


def _plan(
    config: Experiment, varied: Mapping[str, Values], search: Search, display: Display
) -> Sweep:
    """Return the planned sweep. Whatever can be found wrong before anything runs is refused."""
    check(search)
    if search.halving and search.pbt:
        raise UserError("--halving and --pbt cannot be combined.")
    if search.halving == 1:
        raise UserError("halving is 1; it must be at least 2: one of so many points continues.")
    found = points(varied, search.samples, config.seed)
    if search.pbt:  # each member of a population is a point
        found = [point for point in found for _ in range(config.seeds)]
    new = Sweep(dict(varied), search, found, [])
    ends = segment_ends(config, new)
    cuts = f"--halving {search.halving}" if search.halving else f"--pbt {search.pbt}"
    if (search.halving or search.pbt) and len(ends) == 1:
        raise UserError(
            f"{cuts} does not cut {len(found)} points and {config.steps} steps into segments; use "
            "more of them."
        )
    for members in programs(config, new):
        own = apply_structure(config, found[members[0][0]])
        group = members_of_points(config, new, members)
        _, algorithm = build(own)
        updates = [plan(dataclasses.replace(own, steps=x), algorithm).total for x in ends]
        if any(later <= earlier for earlier, later in itertools.pairwise(updates)):
            raise UserError(
                f"{cuts} cuts {config.steps} steps into segments, one of which is shorter than an "
                f"update of {algorithm.env_steps} steps; use more --steps or another "
                f"{cuts.split()[0]}."
            )
        if search.pbt and (len(group) < 2 or not group.hyper):
            raise UserError(
                "--pbt needs at least 2 members of one program that differ in a hyperparameter, "
                "such as --vary agent.learning-rate=1e-4,1e-3."
            )
        most = search.chunk or memory.width(own, algorithm, group, display.say)
        new.chunks.append(min(most, len(group)))
        if search.pbt and new.chunks[-1] < len(group):
            raise UserError(
                f"--pbt exchanges the states of {len(group)} members, but only {most} of them can "
                "be trained at once; use fewer members, or leave out --chunk."
            )
    return new


# -------------------------------------------------------------------------------- training


def _resume(config: Experiment, display: Display) -> Path:
    folder = run_folder.check(config.resume)
    if not has_many_runs(folder):
        training.train(config)
        return _compare_members(folder, config, display)
    continuing.check_unchanged(config, folder)
    new = read(folder, config)
    with run_folder.lock(folder):
        return _run(folder, dataclasses.replace(config, resume=""), new, display)


def _run(folder: Path, config: Experiment, new: Sweep, display: Display) -> Path:
    """Train all parts that are not finished, segment by segment."""
    parts, done, ends = first_parts(config, new), [], segment_ends(config, new)
    for segment, end in enumerate(ends):
        for part in parts:
            try:
                _train(folder, config, new.points[part.points[0]], part, end, display)
            except (SystemExit, Stopped):
                display.warn(f"To resume the sweep: {run_folder.resume_command(folder)}")
                raise
            done.append(part)
            with files.explained(folder):
                results.write_comparison(folder, config, new.points, done, display)
                if new.search.pbt:
                    results.write_lineage(folder, new, done)
        if segment + 1 < len(ends):
            scores = [results.final_scores(folder, part) for part in parts]
            parts = next_parts(config, new, parts, scores, segment)
    results.print_ranking(folder, new.points, done, display)
    return folder


def _train(
    folder: Path, config: Experiment, point: Point, part: Part, end: int, display: Display
) -> None:
    """Train one run to its end; a finished run is left alone.

    If no member's numbers are finite any more, the other runs still continue.
    """
    run = folder / part.name
    if _has_ended(run):
        return
    own = [f"{k} {format_value(v)}" for k, v in point.items() if not is_hyper(config, k)]
    display.say(", ".join([f"{part.name}: {len(part.members)} members", *own]))
    try:
        if run.exists():
            before = run_folder.read_config(run, config.trust or continuing.trusted_code(config))
            kept = ("trust", "debug", "quiet", *continuing.CHANGEABLE)
            now = {name: getattr(config, name) for name in kept}
            training.train(dataclasses.replace(before, resume=str(run), **now))
        else:
            training.train(_part_config(folder, config, point, part, end), part.members)
    except NotFinite as error:
        display.warn(f"{part.name}: {error}")


def _part_config(
    folder: Path, config: Experiment, point: Point, part: Part, end: int
) -> Experiment:
    """Return a part's configuration; its segments log, evaluate and save as the whole run would."""
    config = apply_structure(config, point)
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


def _has_ended(run: Path) -> bool:
    summary = run_folder.summary(run)
    return bool(summary.get("finished")) or summary.get("stopped_because") == "not finite"


def _compare_members(folder: Path, config: Experiment, display: Display) -> Path:
    """Write and print the comparison for a sweep that is one run."""
    members = read_members(folder)
    labels = [{k: v for k, v in label.items() if k != "seed"} for label in members.labels]
    found = [label for i, label in enumerate(labels) if label not in labels[:i]]
    part = Part("", [found.index(label) for label in labels], members)
    if not results.evaluations(folder, part, display)[0].size:
        raise UserError(f"The log of '{folder}' has no evaluations to compare.")
    with files.explained(folder):
        results.write_comparison(folder, config, found, [part], display)
    results.print_ranking(folder, found, [part], display)
    return folder
