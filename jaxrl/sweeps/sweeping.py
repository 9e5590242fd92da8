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
import os
import shlex
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import check
from jaxrl.runtime import configuration, continuing, files, run_folder, training
from jaxrl.runtime.building import build, configure_jax, plan
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.errors import Stopped
from jaxrl.runtime.members import SWEEP, Members, has_many_runs, read_members
from jaxrl.runtime.stopping import NotFinite
from jaxrl.sweeps import memory, proposals, results
from jaxrl.sweeps.launching import LOCAL, Launch, Launcher, Resources, resources, start, train_all
from jaxrl.sweeps.parts import (
    Part,
    Search,
    Sweep,
    apply_structure,
    first_parts,
    members_of_points,
    programs,
    read,
    scores_by_point,
    segment_ends,
)
from jaxrl.sweeps.points import Point, Values, points
from jaxrl.sweeps.segments import segments
from jaxrl.sweeps.tasks import Task, describe, has_ended, invocation, train_part


def sweep(
    config: Experiment,
    varied: Mapping[str, Values] | None = None,
    search: Search = Search(),
    *,
    launch: Launch = Launch(),
) -> Path:
    """Train the points of `varied` with `config.seeds`, or resume the sweep `config.resume`.

    `launch` says where. All launchers write the same folders, but on any except `local` a sweep of
    a single run has a folder of its own for it.

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
        return _resume(config, launch, display)
    if config.fork:
        raise UserError("A sweep cannot be forked; --warm-start takes over one run's agent.")
    with start(launch) as launcher:
        new = _plan(config, varied or {}, search, launch, display)
        parts = first_parts(config, new)
        if len(parts) == 1 and not (search.halving or search.pbt or search.optuna or launcher):
            folder = training.train(apply_structure(config, new.points[0]), parts[0].members)
            return _compare_members(folder, config, display)
        # Recorded, so that every part has the same generator whatever device resumes the sweep.
        generator = random.generator_name(random.key(0, config.generator))
        if config.generator == random.AUTO and launch.gpus:  # this machine may have none
            generator = random.THREEFRY
        config = dataclasses.replace(config, generator=generator)
        trained = _Parts(config, display, launch, launcher)
        trained.check(new)
        with run_folder.draft(config.out, config.name) as draft:
            with files.explained(draft):
                configuration.write(config, draft / "config.yaml")
                new.write(draft / SWEEP)
            stem = f"{run_folder.slug(config.algorithm)}-{run_folder.slug(config.env)}"
            return _run(run_folder.publish(draft, config.name, stem), new, trained)


def _plan(
    config: Experiment,
    varied: Mapping[str, Values],
    search: Search,
    launch: Launch,
    display: Display,
) -> Sweep:
    """Return the planned sweep. Whatever can be found wrong before anything runs is refused."""
    check(search)
    chosen = [f"--{name}" for name in ("halving", "pbt", "optuna") if getattr(search, name)]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)} cannot be combined.")
    if search.halving == 1:
        raise UserError("halving is 1; it must be at least 2: one of so many points continues.")
    new = Sweep(dict(varied), search, [], [])
    if search.optuna:
        _check_proposals(varied, search)
        new.points.extend(_proposals(config, new, []))
    else:
        new.points.extend(points(varied, search.samples, config.seed))
    if search.pbt:  # each member of a population is a point
        new.points[:] = [point for point in new.points for _ in range(config.seeds)]
    _cut(config, new, launch, display)
    return new


def _cut(config: Experiment, new: Sweep, launch: Launch, display: Display) -> None:
    """Add the chunks of the programs that have none yet. Raises `UserError` for what cannot run."""
    search, ends = new.search, segment_ends(config, new)
    free = int(launch.ram * 1e9) - memory.PROCESS if launch.ram and not launch.gpus else None
    cuts = f"--halving {search.halving}" if search.halving else f"--pbt {search.pbt}"
    if (search.halving or search.pbt) and len(ends) == 1:
        raise UserError(
            f"{cuts} does not cut {len(new.points)} points and {config.steps} steps into segments; "
            "use more of them."
        )
    for members in programs(config, new)[len(new.chunks) :]:
        own = apply_structure(config, new.points[members[0][0]])
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
        most = search.chunk or memory.width(own, algorithm, group, display.say, free=free)
        new.chunks.append(min(most, len(group)))
        if search.pbt and new.chunks[-1] < len(group):
            raise UserError(
                f"--pbt exchanges the states of {len(group)} members, but only {most} of them can "
                "be trained at once; use fewer members, or leave out --chunk."
            )


def _check_proposals(varied: Mapping[str, Values], search: Search) -> None:
    """Raise `UserError` unless Optuna can propose points."""
    if not search.samples:
        raise UserError(
            f"--optuna {search.optuna} needs --samples N, the number of points in all; it proposes "
            f"{search.optuna} of them at a time."
        )
    if not varied:
        raise UserError("--optuna needs something to vary, such as --vary agent.clip=0.1,0.2.")
    proposals.load()


def _proposals(config: Experiment, new: Sweep, scores: list[float]) -> list[Point]:
    count = min(new.search.optuna, new.search.samples - len(new.points))
    return proposals.propose(new.varied, new.points, scores, count=count, seed=config.seed)


# -------------------------------------------------------------------------------- training


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Training of a sweep's parts, in this process or on a launcher."""

    config: Experiment
    display: Display
    launch: Launch
    launcher: Launcher | None
    resources: dict[str, Resources] = dataclasses.field(default_factory=dict)  # of each program
    identity: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex[:12])

    def check(self, new: Sweep) -> None:
        """Raise `UserError` if no node of the launcher has the resources of the first parts."""
        for part in first_parts(self.config, new) if self.launcher else ():
            self._resources_of_part(new, part)

    def _resources_of_part(self, new: Sweep, part: Part) -> Resources:
        own = apply_structure(self.config, new.points[part.points[0]])
        return self._resources_of_program(own, part.members, part.stem.partition("-chunk")[0])

    def _resources_of_program(
        self, config: Experiment, members: Members, program: str
    ) -> Resources:
        """Return the resources of a part of `program`; all of them have those of the first one.

        Raises `UserError` if no node of the launcher has them.
        """
        if program not in self.resources and self.launcher:
            on_gpu = self.launch.gpus > 0
            ram = lambda: memory.host_needed(config, members, on_gpu=on_gpu)
            self.resources[program] = resources(self.launch, ram)
            self.launcher.check(self.resources[program])
        return self.resources[program]

    def train(
        self,
        folder: Path,
        new: Sweep,
        parts: list[Part],
        end: int,
        on_end: Callable[[str, str], None],
    ) -> None:
        """Train `parts` to the environment steps `end`; call `on_end` with the name of each, and
        with what is to be said of it, when it has ended. Parts that had ended are left alone."""
        if self.launcher is None:
            for part in parts:
                on_end(part.name, train_part(folder, self.config, new, part, end, self.display))
            return
        todo = []
        for part in parts:
            if has_ended(folder / part.name):
                on_end(part.name, "")
            else:
                self.display.say(describe(self.config, new, part))
                todo.append((self._task(folder, part.name), self._resources_of_part(new, part)))
        # A warm start from a configuration trains a run that all parts share: one of them does.
        first = 1 if configuration.is_file(self.config.warm_start) and not parts[0].segment else 0
        for some in (todo[:first], todo[first:]):
            train_all(self.launcher, some, lambda task, said: on_end(task.name, said), self.display)

    def resume_run(self, folder: Path) -> None:
        """Resume a sweep that is one run."""
        if self.launcher is None:
            training.train(self.config)
        elif not has_ended(folder):
            needed = self._resources_of_program(self.config, read_members(folder), "")
            todo = [(self._task(folder, ""), needed)]
            train_all(self.launcher, todo, _raise_not_finite, self.display)

    def _task(self, folder: Path, name: str) -> Task:
        trust = self.config.trust or continuing.trusted_code(self.config)
        return Task(str(folder), name, os.getcwd(), self.identity, trust, invocation(self.config))


def _raise_not_finite(task: Task, said: str) -> None:
    if said:
        raise NotFinite(said)


def _resume(config: Experiment, launch: Launch, display: Display) -> Path:
    folder = run_folder.check(config.resume)
    if not has_many_runs(folder):
        with start(launch) as launcher:
            _Parts(config, display, launch, launcher).resume_run(folder)
        return _compare_members(folder, config, display)
    continuing.check_unchanged(config, folder)
    new = read(folder, config)
    config = dataclasses.replace(config, resume="")
    with start(launch) as launcher, run_folder.lock(folder):
        trained = _Parts(config, display, launch, launcher)
        trained.check(new)
        return _run(folder, new, trained)


def _run(folder: Path, new: Sweep, trained: _Parts) -> Path:
    """Train all parts that are not finished, segment by segment."""
    config, display = trained.config, trained.display
    done: list[Part] = []
    for parts, end in _segments(folder, new, trained):
        earlier, ended = tuple(done), set()

        def on_end(name: str, said: str, earlier=earlier, parts=parts, ended=ended) -> None:
            if said:
                display.warn(f"{name}: {said}")
            ended.add(name)
            now = [*earlier, *(part for part in parts if part.name in ended)]
            with files.explained(folder):
                results.write_comparison(folder, config, new.points, now, display)
                if new.search.pbt:
                    results.write_lineage(folder, new, now)

        try:
            trained.train(folder, new, parts, end, on_end)
        except (SystemExit, KeyboardInterrupt, Stopped):
            display.warn(f"To resume the sweep: {resume_command(folder, trained.launch)}")
            raise
        done += parts
    results.print_ranking(folder, new.points, done, display)
    return folder


def _segments(folder: Path, new: Sweep, trained: _Parts) -> Iterator[tuple[list[Part], int]]:
    """Yield as `segments` does; where Optuna proposes points, propose and record each batch once
    the one before has ended."""
    config = trained.config
    if not new.search.optuna:
        yield from segments(folder, config, new)
        return
    for batch in itertools.count():
        known = list(segments(folder, config, new))
        if batch == len(known):
            if len(new.points) >= new.search.samples:
                return
            parts = first_parts(config, new)
            ended = [results.final_scores(folder, part) for part in parts]
            scores = {k: float(np.mean(v)) for k, v in scores_by_point(parts, ended).items()}
            in_order = [scores[i] for i in range(len(new.points))]
            new.points.extend(_proposals(config, new, in_order))
            _cut(config, new, trained.launch, trained.display)
            with files.explained(folder):
                new.write(folder / SWEEP)
            known = list(segments(folder, config, new))
        yield known[batch]


def resume_command(folder: Path, launch: Launch) -> str:
    """Return the command that resumes a sweep on the same launcher."""
    if launch.launcher == LOCAL:
        return run_folder.resume_command(folder)
    words = [f"jaxrl sweep --resume {shlex.quote(str(folder))} --launcher {launch.launcher}"]
    default = Launch()
    for name in ("cpus", "gpus", "ram", "hours"):
        if getattr(launch, name) != getattr(default, name):
            words.append(f"--{name} {getattr(launch, name):g}")
    if launch.slurm:
        words.append(" ".join(["--slurm", *(f"{k}={v}" for k, v in launch.slurm.items())]))
    trust = ["--trust"] if run_folder.resume_command(folder).endswith(" --trust") else []
    return " ".join([*words, *trust])


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
