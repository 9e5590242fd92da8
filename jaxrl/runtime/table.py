"""A run's log as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.runtime import log as logs
from jaxrl.runtime import run_folder
from jaxrl.runtime.members import read_members


def read(folder: str | Path) -> dict[str, np.ndarray]:
    """Return the log of the run in `folder` as columns of equal length, for `pandas.DataFrame`.

    The run need not be finished. There is one row for each row of the log and each member, in the
    log's order:

    kind: `train`, over the steps since the last such row, or `evaluation`.
    steps, updates: environment steps of each member, and steps of the algorithm, so far.
    seconds: since the log's first row, including time in which the run was stopped.
    member, seed: index among those trained side by side, from 0, and its seed.

    Other columns are the settings in which the members differ, such as `optimizer.learning_rate` in
    a sweep, and all metrics, float, NaN where there is none. A metric named like an earlier column
    is `metrics.NAME`.

    Raises:
        UserError: if `folder` is not a run's folder, if nothing is logged yet, or if log and
            members do not match. Code that the run names is not imported.
    """
    folder = run_folder.check(folder)
    labels = read_members(folder).labels
    path = folder / "metrics.jsonl"
    rows = logs.read(path) if path.exists() else []
    if not rows:
        raise UserError(f"The run in '{folder}' has logged nothing yet.")
    when = [row.get("time", row.get("seconds", np.nan)) for row in rows]  # older logs say seconds
    each = lambda values: np.repeat(np.asarray(values), len(labels))
    table = {
        "kind": each([row["kind"] for row in rows]),
        "steps": each([row["steps"] for row in rows]),
        "updates": each([row["updates"] for row in rows]),
        "seconds": each(np.asarray(when, float) - when[0]),
        "member": np.tile(np.arange(len(labels)), len(rows)),
    }
    for name in dict.fromkeys(name for label in labels for name in label):
        table[name] = np.tile([label.get(name, np.nan) for label in labels], len(rows))
    for name in dict.fromkeys(name for row in rows for name in row["metrics"]):
        values = [_values(row, name, len(labels), path) for row in rows]
        table[f"metrics.{name}" if name in table else name] = np.concatenate(values)
    return table


def _values(row: dict[str, Any], name: str, members: int, path: Path) -> np.ndarray:
    """Return a metric's values [members] as float, NaN where there is none."""
    values = np.atleast_1d(np.asarray(row["metrics"].get(name, [None] * members), float))
    if len(values) != members:
        raise UserError(
            f"'{path}' does not match the run's members.json: {name} has {len(values)} values at "
            f"update {row['updates']}, and there are {members} members."
        )
    return values
