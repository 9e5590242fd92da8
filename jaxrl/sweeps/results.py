"""Results of a sweep: scores of its points, their table and picture."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.runtime import log as logs
from jaxrl.runtime import run_folder
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.sweeps.parts import Part, Sweep, scores_by_point
from jaxrl.sweeps.points import Point, format_value


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

    A point that continued further comes before one that was left behind; then the mean decides.
    """
    scores = scores_by_point(parts, [final_scores(folder, part) for part in parts])
    reached = {point: part.segment for part in parts for point in part.points}
    mean = lambda p: np.mean(scores[p]) if np.isfinite(scores[p]).all() else -np.inf
    return {p: scores[p] for p in sorted(scores, key=lambda p: (-reached[p], -mean(p), p))}


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
    """Write sweep.csv and sweep.png for all parts that are done."""
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
    seeds, final = max(map(len, order.values())), _final_settings(found, parts)
    sweep_picture(
        {name: [_cell(final[p][name]) for p in order] for name in found[0]},
        [[*scores, *[np.nan] * (seeds - len(scores))] for scores in order.values()],
        folder / "sweep.png",
        title=f"{config.algorithm} on {config.env}",
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
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *([*map(_cell, row)] for row in rows)])


def _cell(value: Any) -> Any:
    return format_value(value) if isinstance(value, tuple) else value


def print_ranking(folder: Path, found: list[Point], parts: list[Part], display: Display) -> None:
    """Print the final returns of the ten best points, the best first."""
    final = _final_settings(found, parts)
    for point, scores in itertools.islice(rank(folder, parts).items(), 10):
        values = (f"{name} {format_value(value)}" for name, value in final[point].items())
        display.say(f"{', '.join(values) or 'all seeds'}: final return {np.mean(scores):.5g}")
    display.say(f"Table and picture: {folder / 'sweep.csv'}, {folder / 'sweep.png'}")
