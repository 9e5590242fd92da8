"""Settings: those of a side's grid that do best in a world, on seeds of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.evidence.declare import Trial
from experiments.evidence.measure import Measure, configured, grid_points, measured
from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Key


def tune(
    measure: Measure, trial: Trial, keys: Key, metric: str, more_is_better: bool = True
) -> dict[str, Any]:
    """All points of a side's grid on all of `keys` [seeds] together, and the point with the best
    mean of `metric`; runs that are not finite are the worst, of equals the first is taken. A side
    without a grid has one point.

    A best value at an end of its values widens them there once, by the ratio of the last two (by
    their difference where they are not positive), with all else at its best.

    Returns, as JSON can hold: `best` {hyper: value}, `at_best` {metric: [seeds]}, `grid` {hyper:
    values tried}, `points` [{hyper: value}], `scores` [points][seeds], and `edges`: [whether all is
    well, sentence] for each value that was at an end. Raises `UserError` where nothing is finite
    and where `metric` is not measured.
    """
    grid = {name: sorted(values) for name, values in trial.side.grid.items()}
    points, found = [], []

    def best() -> int:
        scores = np.array([x[metric] for x in found]) * (1 if more_is_better else -1)
        means = np.where(np.isfinite(scores), scores, -np.inf).mean(1)
        if not np.isfinite(means).any():
            raise UserError(f"No setting of '{trial.name}' in {trial.world.label} gives a "
                            f"'{metric}' that is finite on all tuning seeds.")  # fmt: skip
        return int(np.argmax(means))

    def try_out(new: list[dict[str, float]]) -> None:
        hyper = {name: np.repeat([p[name] for p in new], len(keys)) for name in grid}
        values = measured(measure, trial, keys[np.tile(np.arange(len(keys)), len(new))], hyper)
        if metric not in values:
            raise unknown(f"metric of '{trial.name}'", metric, values)
        points.extend(new)
        for i in range(len(new)):
            rows = slice(i * len(keys), (i + 1) * len(keys))
            found.append({name: x[rows] for name, x in values.items()})

    try_out(grid_points(grid))
    edges = []
    if not trial.tiny:
        edges = _widen(trial, grid, points[best()], try_out)
    chosen = best()
    return {
        "best": points[chosen],
        "at_best": found[chosen],
        "grid": grid,
        "points": points,
        "scores": [x[metric] for x in found],
        "edges": [_edge(trial, name, points[chosen], grid, wrong) for name, wrong in edges],
    }


def _widen(trial, grid, best, try_out) -> list[tuple[str, str]]:
    """Widens `grid` where `best` is at an end, and tries it out: the hyper-parameters concerned,
    each with why that was not possible."""
    edges, new = [], []
    for name, values in grid.items():
        further = beyond(values, best[name])
        if further is None:
            continue
        wrong = _out_of_range(trial, name, further)
        edges.append((name, wrong))
        if not wrong:
            new.append(best | {name: further})
            grid[name] = sorted([*values, further])
    if new:
        try_out(new)
    return edges


def _out_of_range(trial: Trial, name: str, value: float) -> str:
    """Why a setting cannot be `value`; empty where it can, and where only `measure` knows it."""
    config = configured(trial)
    if not any(f".{known}".endswith(f".{name}") for known, _, _ in settings.walk(config)):
        return ""
    try:
        configured(trial, {name: value})
    except UserError as error:
        return str(error)
    return ""


def beyond(values: list[float], best: float) -> float | None:
    """The value that comes after `best` at an end of `values`, which rise; None inside of them, and
    where there is one only."""
    if len(values) < 2 or best not in (values[0], values[-1]):
        return None
    end, before = (values[0], values[1]) if best == values[0] else (values[-1], values[-2])
    further = end * end / before if end > 0 and before > 0 else 2 * end - before
    return float(f"{further:.4g}")  # as one writes it


def _edge(trial, name, best, grid, wrong: str) -> tuple[bool, str]:
    """Whether a widened grid has its best value inside, and that in a sentence."""
    where = f"{name} of '{trial.name}' in {trial.world.label}"
    value, values = best[name], grid[name]
    if wrong:
        return False, f"{where} is best at {value:g}, the end of what was tried, and goes no " \
                      f"further: {wrong}"  # fmt: skip
    tried = ", ".join(f"{x:g}" for x in values)
    if value in (values[0], values[-1]):
        return False, f"{where} is best at {value:g}, the end of its values after these were " \
                      f"widened: {tried}."  # fmt: skip
    return True, f"{where} was best at the end of its values; they were widened to {tried}, and " \
                 f"{value:g} is best."  # fmt: skip
