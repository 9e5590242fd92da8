"""Results of a sweep: scores of its points, their table and picture."""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.hyper import log_scaled
from jaxrl.evaluation.statistics import Interval, confidence_text, score_interval
from jaxrl.runtime import files, run_folder
from jaxrl.runtime import log as logs
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import RANKING
from jaxrl.sweeps.parts import Part, Sweep, scores_by_point
from jaxrl.sweeps.points import Point, format_value

MOST_PRINTED = 10  # points in the printed ranking
LEVEL = "="  # marks points whose interval overlaps that of the best


def final_scores(folder: Path, part: Part) -> np.ndarray:
    """Return the last return of each member.

    NaN for a member that diverged, that ended early, or without evaluations.
    """
    summary = run_folder.summary(folder / part.name)
    returns = summary.get("returns") if summary.get("finished") else None
    scores = np.asarray(returns or [np.nan] * len(part.members), float)
    scores[[int(i) for i in summary.get("diverged", ())]] = np.nan
    return scores


def evaluations(folder: Path, part: Part, display: Display) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps [K] and returns [members, K] of a part's evaluations."""
    rows = logs.read(folder / part.name / "metrics.jsonl", "evaluation", display.warn)
    return logs.series(rows, "return")


def rank(folder: Path, parts: list[Part]) -> dict[int, list[float]]:
    """Return the scores of each point, over all its seeds, with the best point first.

    A point that continued further comes before one that was left behind; then the mean decides. A
    point with a seed that diverged comes last.
    """
    scores = scores_by_point(parts, [final_scores(folder, part) for part in parts])
    reached = {point: part.segment for part in parts for point in part.points}
    mean = lambda p: np.mean(scores[p]) if np.isfinite(scores[p]).all() else -np.inf
    return {p: scores[p] for p in sorted(scores, key=lambda p: (-reached[p], -mean(p), p))}


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A point in the ranking of a sweep, over all its seeds.

    interval: NaN where a seed diverged; infinite for a single seed.
    is_level: whether the interval overlaps that of the best point; None where one is unknown, and
        for a point that was left behind before the best one's last step.
    steps: environment steps of each seed after which it was evaluated last; None where unknown.
    is_behind: whether it was left behind.
    places: its members, each the index in a run, after the name of the run's folder and a slash if
        it is not the sweep's: `3`, `program1/0`.
    """

    point: int
    settings: Point
    interval: Interval
    seeds: int
    is_level: bool | None
    steps: int | None
    is_behind: bool
    places: list[str]

    @property
    def name(self) -> str:
        return name_point(self.settings)


def name_point(settings: Mapping[str, Any]) -> str:
    """Return the name of a point, such as `clip 0.1, hidden 64,64`."""
    return ", ".join(f"{k} {format_value(v)}" for k, v in settings.items())


def ranking(folder: Path, found: list[Point], parts: list[Part]) -> list[Ranked]:
    """Return the points, the best first, with the interval of each mean over seeds."""
    final, ranked = _final_settings(found, parts), []
    places, last = _places(parts), {point: part for part in parts for point in part.points}
    steps = {part.name: run_folder.summary(folder / part.name).get("steps") for part in parts}
    best: Interval | None = None
    furthest = max((part.segment for part in parts), default=0)
    for point, scores in rank(folder, parts).items():
        nothing = Interval(np.nan, np.nan, np.nan)
        interval = score_interval(scores) if np.isfinite(scores).all() else nothing
        best = best or interval
        ends = [*interval, *best]
        behind, after = last[point].segment < furthest, steps[last[point].name]
        known = np.isfinite(ends).all() and not behind
        level = bool(interval.high >= best.low) if known else None
        ranked.append(
            Ranked(point, final[point], interval, len(scores), level, after, behind, places[point])
        )
    return ranked


def _places(parts: list[Part]) -> dict[int, list[str]]:
    """Return where each point's members are, in the last segment that it was in."""
    last = {point: part.segment for part in parts for point in part.points}
    found: dict[int, list[str]] = {}
    for part in parts:
        for i, point in enumerate(part.points):
            if part.segment == last[point]:
                found.setdefault(point, []).append(f"{part.name}/{i}" if part.name else str(i))
    return found


def write_ranking(path: Path, ranked: list[Ranked]) -> None:
    """Write a row for each point, the best first; `jaxrl.load` reads it."""
    columns = ["rank", "point", "name", "mean", "low", "high", "seeds", "level_with_best", "steps"]
    known = lambda x: x if np.isfinite(x) else ""
    level = {None: "", False: "false", True: "true"}
    rows = [
        [
            *(i, x.point, x.name),
            *map(known, x.interval),
            *(x.seeds, level[x.is_level], "" if x.steps is None else x.steps),
            " ".join(x.places),
        ]
        for i, x in enumerate(ranked, 1)
    ]
    _write_csv(path, [*columns, "members"], rows)


def _final_settings(found: list[Point], parts: list[Part]) -> dict[int, Point]:
    """Return the settings of each point in the last segment that it was in."""
    return {
        point: found[point] | {k: v for k, v in label.items() if k != "seed"}
        for part in parts
        for point, label in zip(part.points, part.members.labels, strict=True)
    }


def write_comparison(
    folder: Path, config: Experiment, found: list[Point], parts: list[Part], display: Display
) -> None:
    """Write sweep.csv, ranking.csv and sweep.png for all parts that are done."""
    from jaxrl.evaluation.score_plots import sweep_picture

    order = rank(folder, parts)
    rows: dict[int, list[list[Any]]] = {point: [] for point in order}
    for part in parts:
        steps, returns = evaluations(folder, part, display)
        for point, label, own in zip(part.points, part.members.labels, returns, strict=False):
            now = {"seed": 0} | found[point] | label
            rows[point] += [
                [point, *now.values(), int(x), y] for x, y in zip(steps, own, strict=True)
            ]
    columns = ["point", "seed", *found[0], "steps", "return"]
    _write_csv(folder / "sweep.csv", columns, itertools.chain(*rows.values()))
    write_ranking(folder / RANKING, ranking(folder, found, parts))
    seeds, final = max(map(len, order.values())), _final_settings(found, parts)
    sweep_picture(
        {name: [_cell(final[p][name]) for p in order] for name in found[0]},
        [[*scores, *[np.nan] * (seeds - len(scores))] for scores in order.values()],
        folder / "sweep.png",
        title=f"{config.algorithm} on {config.env}",
        log_scaled=log_scaled(config.agent),
    )


def write_lineage(folder: Path, new: Sweep, parts: list[Part]) -> None:
    """Write lineage.csv: a row for each segment and member of a population."""
    names = list(new.varied)
    rows = []
    for part in parts:
        parents = part.members.parents or range(len(part.points))
        scores = final_scores(folder, part)
        for i, (point, parent) in enumerate(zip(part.points, parents, strict=True)):
            now = new.points[point] | part.members.labels[i]
            values = [now[name] for name in names]
            rows.append([part.segment + 1, point, part.points[parent], *values, scores[i]])
    _write_csv(folder / "lineage.csv", ["segment", "point", "parent", *names, "score"], rows)


def _write_csv(path: Path, columns: list[str], rows: Iterable[list[Any]]) -> None:
    with files.replacing(path) as new, new.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *([*map(_cell, row)] for row in rows)])


def _cell(value: Any) -> Any:
    return format_value(value) if isinstance(value, tuple) else value


def print_ranking(folder: Path, found: list[Point], parts: list[Part], display: Display) -> None:
    """Print the ten best points, the best first: mean final return, its interval, and seeds."""
    ranked = ranking(folder, found, parts)
    for line in ranking_table(ranked[:MOST_PRINTED]):
        display.say(line)
    if len(ranked) > MOST_PRINTED:
        display.say(f"... and {len(ranked) - MOST_PRINTED} more in {folder / RANKING}")
    display.say(f"Tables and picture: {folder / RANKING}, sweep.csv, sweep.png")


def ranking_table(ranked: list[Ranked]) -> list[str]:
    """Return the lines of the table of points, and what its marks say."""
    least = min(x.seeds for x in ranked)
    rows = [["", "point", "final return", f"{confidence_text(least)} interval", "seeds"]]
    differ = any(x.is_behind for x in ranked)
    for x in ranked:
        mean, low, high = (f"{part:.5g}" for part in x.interval)
        known = np.isfinite(x.interval.low)
        mark = LEVEL if x.is_level and x is not ranked[0] else ""
        mean = mean if np.isfinite(x.interval.estimate) else "diverged"
        ends = f"{low} to {high}" if known else ""
        rows.append([mark, x.name or "all seeds", mean, ends, str(x.seeds)])
    if least == 1:
        rows[0][3] = "interval"
    if differ:
        after = ["" if x.steps is None else f"{x.steps:,}" for x in ranked]
        rows = [[*row, cell] for row, cell in zip(rows, ["steps", *after], strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = [[x.ljust(n) for x, n in zip(row, widths, strict=True)] for row in rows]
    lines = ["  ".join(row).rstrip() for row in texts]
    if any(row[0] for row in rows):
        lines.append(f"{LEVEL} Its interval overlaps the best one's; more seeds may reorder them.")
    if differ:
        lines.append("Points with fewer steps were left behind; their returns are those of then.")
    if len(ranked) > 1 and least == 1:
        lines.append("One seed has no interval, so the order is uncertain; add --seeds.")
    return lines
