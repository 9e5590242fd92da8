"""What a sweep consists of: how its points become programs, their members chunks, and the steps
segments. All of it follows from the configuration, the points and the members' scores."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY, check, static
from jaxrl.runtime import continuing, run_folder
from jaxrl.runtime.configuration import STEPS, Experiment
from jaxrl.runtime.members import SWEEP, Members
from jaxrl.sweeps import selection
from jaxrl.sweeps.points import Point, Values, applied, is_hyper


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


def programs(config: Experiment, new: Sweep) -> list[list[tuple[int, int]]]:
    """The members, each a point and a seed, of every program; its points differ in hypers alone."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for i, point in enumerate(new.points):
        own = {k: v for k, v in point.items() if not is_hyper(config, k)}
        seeds = [i] if new.search.pbt else range(config.seeds)
        groups.setdefault(repr(own), []).extend((i, config.seed + seed) for seed in seeds)
    return list(groups.values())


def structured(config: Experiment, point: Point) -> Experiment:
    """`config` with what of `point` is structure."""
    return applied(config, {k: v for k, v in point.items() if not is_hyper(config, k)})


def members_of_points(config: Experiment, new: Sweep, members: list[tuple[int, int]]) -> Members:
    """`members`, each a point and a seed, as they are trained side by side."""
    names = [name for name in new.varied if is_hyper(config, name)]
    labels = [{"seed": seed} | {k: new.points[i][k] for k in names} for i, seed in members]
    return _with_hyper(labels, names)


def _with_hyper(labels: list[dict[str, Any]], names: list[str], **more: Any) -> Members:
    hyper = {k: np.asarray([label[k] for label in labels], np.float32) for k in names}
    return Members(labels, hyper, **more)


def first_parts(config: Experiment, new: Sweep) -> list[Part]:
    """The runs, as they begin."""
    parts = []
    for p, (members, chunk) in enumerate(zip(programs(config, new), new.chunks, strict=True), 1):
        for c, begin in enumerate(range(0, len(members), chunk), 1):
            own = members[begin : begin + chunk]
            stem = f"program{p}" + (f"-chunk{c}" if chunk < len(members) else "")
            own_points = [point for point, _ in own]
            parts.append(Part(stem, own_points, members_of_points(config, new, own)))
    return parts


def segment_ends(config: Experiment, new: Sweep) -> list[int]:
    """Environment steps after which each segment ends."""
    if new.search.halving:
        return selection.rungs(config.steps, len(new.points), new.search.halving)
    if new.search.pbt:
        return [*range(new.search.pbt, config.steps, new.search.pbt), config.steps]
    return [config.steps]


def next_parts(
    config: Experiment, new: Sweep, parts: list[Part], scores: list[np.ndarray], segment: int
) -> list[Part]:
    """The next segments of the parts that have just ended with these `scores` of their members."""
    if new.search.halving:
        kept = _kept(parts, scores, new.search.halving)
        children = [
            _child(part, [i for i, p in enumerate(part.points) if p in kept]) for part in parts
        ]
        return [child for child in children if child.points]
    rngs = [np.random.default_rng([config.seed, segment, i]) for i in range(len(parts))]
    return [_exchanged(*x, new) for x in zip(parts, scores, rngs, strict=True)]


def _kept(parts: list[Part], scores: list[np.ndarray], eta: int) -> set[int]:
    means = {p: np.mean(v) for p, v in by_point(parts, scores).items()}
    order = sorted(means)
    return {order[i] for i in selection.best(np.asarray([means[p] for p in order]), eta)}


def by_point(parts: list[Part], scores: list[np.ndarray]) -> dict[int, list[float]]:
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


def read(folder: Path, config: Experiment) -> Sweep:
    """What the sweep in `folder` is. Raises `UserError` where its file cannot be read."""
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
        if len(programs(config, new)) != len(new.chunks) or min(new.chunks) < 1:
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
