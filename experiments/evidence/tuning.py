"""Tuning: the best settings of a side's grid in an environment, on seeds of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from experiments.evidence import looks
from experiments.evidence.declare import Measure, Trial
from experiments.evidence.measure import configure, grid_points, run
from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Key


def tune(
    measure: Measure, trial: Trial, keys: Key, metric: str, more_is_better: bool = True
) -> dict[str, Any]:
    """Run all points of a side's grid on all of `keys` [seeds], and find the best.

    The best point has the best mean of `metric`; runs that are not finite count as the worst, and
    of equal points the first is taken. A side without a grid has one point. A best value at an end
    of its values widens them there once (`looks.value_beyond`), with all else at its best.

    Returns, as JSON can hold: `best` {hyper: value}, `at_best` {metric: [seeds]}, `grid` {hyper:
    values tried}, `points` [{hyper: value}], `scores` [points][seeds], and `edges`: a look for each
    value that was at an end. Raises `UserError` if no point is finite on all seeds, and if `metric`
    is not measured.
    """
    grid = {name: sorted(values) for name, values in trial.side.grid.items()}
    points, found = [], []

    def best() -> int:
        scores = np.array([x[metric] for x in found]) * (1 if more_is_better else -1)
        means = np.where(np.isfinite(scores), scores, -np.inf).mean(1)
        if not np.isfinite(means).any():
            raise UserError(f"No setting of '{trial.name}' in {trial.environment.label} gives a "
                            f"'{metric}' that is finite on all tuning seeds.")  # fmt: skip
        return int(np.argmax(means))

    def try_out(new: list[dict[str, float]]) -> None:
        hyper = {name: np.repeat([p[name] for p in new], len(keys)) for name in grid}
        values = run(measure, trial, keys[np.tile(np.arange(len(keys)), len(new))], hyper)
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
        "edges": [
            dataclasses.asdict(
                looks.edge(
                    f"{name} of '{trial.name}' in {trial.environment.label}",
                    trial.side.grid[name],
                    grid[name],
                    points[chosen][name],
                    wrong,
                )
            )
            for name, wrong in edges
        ],
    }


def _widen(trial, grid, best, try_out) -> list[tuple[str, str]]:
    """Widen `grid` where `best` is at an end, and try it out.

    Returns the hyperparameters concerned, each with why that was impossible; empty if it was not.
    """
    edges, new = [], []
    for name, values in grid.items():
        further = looks.value_beyond(values, best[name])
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
    """Return why a setting cannot be `value`; empty if it can, or if only `measure` knows it."""
    config = configure(trial)
    if not settings.candidates(name, (known for known, _, _ in settings.walk(config))):
        return ""
    try:
        configure(trial, {name: value})
    except UserError as error:
        return str(error)
    return ""
