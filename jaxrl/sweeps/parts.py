"""The parts of a sweep: points become programs, members chunks, and steps segments.

All of it follows from the configuration, the points and the members' scores.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY, check, static
from jaxrl.runtime import continuing, files, run_folder
from jaxrl.runtime.configuration import STEPS, Experiment
from jaxrl.runtime.members import SWEEP, Members
from jaxrl.sweeps import selection
from jaxrl.sweeps.points import Point, Values, apply, is_hyper


@dataclasses.dataclass(frozen=True)
class Search:
    """Options that draw, select or chunk the points of a sweep; 0 switches one off."""

    samples: int = static(0, low=0, high=MANY)
    """Number of points to draw, if a setting is varied over a range."""
    halving: int = static(0, low=0, high=MANY)
    """Eta of successive halving: at each rung the best one of so many points continues."""
    pbt: int = static(0, low=0, high=STEPS)
    """Environment steps between two exchanges of population based training."""
    optuna: int = static(0, low=0, high=MANY)
    """Number of points that Optuna proposes at a time, by the scores of all points before; samples
    is their number in all."""
    chunk: int = static(0, low=0, high=MANY)
    """Largest number of members trained at once; 0 for as many as fit the memory."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A run of the sweep."""

    stem: str  # "" if the run's folder is the sweep's
    points: list[int]  # index of each member's point
    members: Members
    segment: int = 0

    @property
    def name(self) -> str:
        return f"{self.stem}-segment{self.segment + 1}" if self.segment else self.stem


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The content of sweep.json."""

    varied: dict[str, Values]
    search: Search
    points: list[Point]
    chunks: list[int]  # for each program, the number of members trained at once

    def write(self, path: Path) -> None:
        """Write the sweep to `path`, at once for all who read it meanwhile."""
        files.write_text(path, json.dumps(dataclasses.asdict(self), indent=1))

    def batch(self, point: int) -> int:
        """Return the number of the batch that a point is in: 0 unless Optuna proposes points."""
        return point // self.search.optuna if self.search.optuna else 0


def programs(config: Experiment, new: Sweep) -> list[list[tuple[int, int]]]:
    """Return the members, each (point, seed), of every program; points differ in hypers alone.

    Points that Optuna proposed share a program with those of their batch, which come first.
    """
    groups: dict[str, list[tuple[int, int]]] = {}
    for i, point in enumerate(new.points):
        own = {k: v for k, v in point.items() if not is_hyper(config, k)}
        seeds = [i] if new.search.pbt else range(config.seeds)
        groups.setdefault(repr((new.batch(i), own)), []).extend(
            (i, config.seed + seed) for seed in seeds
        )
    return list(groups.values())


def apply_structure(config: Experiment, point: Point) -> Experiment:
    """Return `config` with the settings of `point` that are not hyperparameters."""
    return apply(config, {k: v for k, v in point.items() if not is_hyper(config, k)})


def members_of_points(config: Experiment, new: Sweep, members: list[tuple[int, int]]) -> Members:
    """Return `members`, each (point, seed), as they are trained side by side."""
    names = [name for name in new.varied if is_hyper(config, name)]
    labels = [{"seed": seed} | {k: new.points[i][k] for k in names} for i, seed in members]
    return _make_members(labels, names)


def _make_members(labels: list[dict[str, Any]], names: list[str], **more: Any) -> Members:
    hyper = {k: np.asarray([label[k] for label in labels], np.float32) for k in names}
    return Members(labels, hyper, **more)


def first_parts(config: Experiment, new: Sweep) -> list[Part]:
    """Return the runs with which the sweep begins."""
    parts = []
    for p, (members, chunk) in enumerate(zip(programs(config, new), new.chunks, strict=True), 1):
        for c, begin in enumerate(range(0, len(members), chunk), 1):
            own = members[begin : begin + chunk]
            stem = f"program{p}" + (f"-chunk{c}" if chunk < len(members) else "")
            own_points = [point for point, _ in own]
            parts.append(Part(stem, own_points, members_of_points(config, new, own)))
    return parts


def segment_ends(config: Experiment, new: Sweep) -> list[int]:
    """Return the environment steps at which each segment ends."""
    if new.search.halving:
        return selection.rungs(config.steps, len(new.points), new.search.halving)
    if new.search.pbt:
        return [*range(new.search.pbt, config.steps, new.search.pbt), config.steps]
    return [config.steps]


def next_parts(
    config: Experiment, new: Sweep, parts: list[Part], scores: list[np.ndarray], segment: int
) -> list[Part]:
    """Return the next segments of the parts that just ended, given their members' scores."""
    if new.search.halving:
        kept = _survivors(parts, scores, new.search.halving)
        children = [
            _child(part, [i for i, p in enumerate(part.points) if p in kept]) for part in parts
        ]
        return [child for child in children if child.points]
    rngs = [np.random.default_rng([config.seed, segment, i]) for i in range(len(parts))]
    return [_exchange(*x, new) for x in zip(parts, scores, rngs, strict=True)]


def _survivors(parts: list[Part], scores: list[np.ndarray], eta: int) -> set[int]:
    means = {p: np.mean(v) for p, v in scores_by_point(parts, scores).items()}
    order = sorted(means)
    return {order[i] for i in selection.best(np.asarray([means[p] for p in order]), eta)}


def scores_by_point(parts: list[Part], scores: list[np.ndarray]) -> dict[int, list[float]]:
    """Return each point's scores in the last segment that it was in."""
    found: dict[int, tuple[int, list[float]]] = {}
    for part, own in zip(parts, scores, strict=True):
        for point, score in zip(part.points, own, strict=True):
            segment, before = found.get(point, (part.segment, []))
            found[point] = part.segment, [*(before if segment == part.segment else ()), score]
    return {point: values for point, (_, values) in found.items()}


def _child(part: Part, parents: list[int]) -> Part:
    """Return the next segment of `part`, with only the members in `parents`."""
    labels = [part.members.labels[i] for i in parents]
    members = _make_members(labels, list(part.members.hyper), parents=parents)
    return Part(part.stem, [part.points[i] for i in parents], members, part.segment + 1)


def _exchange(part: Part, scores: np.ndarray, rng: np.random.Generator, new: Sweep) -> Part:
    """Return the next segment of a population."""
    parents, hyper = selection.exchange(scores, part.members.hyper, new.varied, rng)
    labels = [
        label | {name: float(values[i]) for name, values in hyper.items()}
        for i, label in enumerate(part.members.labels)
    ]
    members = _make_members(labels, list(hyper), parents=parents)
    return Part(part.stem, part.points, members, part.segment + 1)


def read(folder: Path, config: Experiment) -> Sweep:
    """Return the sweep in `folder`. Raises `UserError` if its file cannot be read."""
    try:
        data = files.read_json(folder / SWEEP)
        run_folder.check_trust(folder, data, config.trust or continuing.trusted_code(config))
        found = [{k: _as_tuple(v) for k, v in point.items()} for point in data["points"]]
        varied = {
            name: Values(**values | {"listed": tuple(map(_as_tuple, values["listed"]))})
            for name, values in data["varied"].items()
        }
        new = Sweep(varied, Search(**data["search"]), found, [int(n) for n in data["chunks"]])
        check(new.search)
        if len(programs(config, new)) != len(new.chunks) or min(new.chunks) < 1:
            raise ValueError("its chunks do not match its points")
        for point in new.points:
            apply(config, point)
            if new.search.optuna and not all(v.holds(point[name]) for name, v in varied.items()):
                raise ValueError("it has a point with a value that is not varied")
        return new
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise UserError(f"'{folder / SWEEP}' cannot be read: {reason}.") from error


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
