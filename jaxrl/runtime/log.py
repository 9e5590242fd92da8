"""The log of a run: one JSON line for each row of metrics and each evaluation."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core import metrics as m
from jaxrl.runtime.files import parse_int

Warn = Callable[[str], Any]


class Log:
    """An append-only metrics.jsonl, one row on each line.

    A row has `kind` (train or evaluation), `steps` (environment steps of each member), `updates`,
    `time` (Unix time in seconds; older logs call it `seconds`), and `metrics`: name -> a value for
    each member, null where there was none.
    """

    def __init__(
        self, path: Path, step: int | None = None, size: int = 0, warn: Warn = warnings.warn
    ):
        """Open for appending; an incomplete last line is cut off.

        Args:
            step: drop the rows after the checkpoint of this update.
            size: number of bytes the log had at that checkpoint. If fewer are left, the run
                continues with these, and `warn` is called with one sentence.
        """
        self.path = path
        content = path.read_bytes() if path.exists() else b""
        kept = 0
        for line in content.splitlines(keepends=True):
            row = _row(line)
            later = row is not None and step is not None and row["updates"] > step
            if later or not line.endswith(b"\n"):
                break
            kept += len(line)
        if kept < size:
            warn(
                f"'{path}' has lost rows: it had {size} bytes at update {step} and has {kept} now; "
                "the run continues with these."
            )
        # Unbuffered, so that a row that does not fit on the disk is not written again at the end.
        self._file = path.open("ab", buffering=0)
        self._file.truncate(kept)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row.

        Raises:
            OSError: with the log's name, if it cannot be written, or was deleted (its rows would be
                lost).
        """
        line = json.dumps(to_jsonable(row)).encode() + b"\n"
        try:
            if not os.fstat(self._file.fileno()).st_nlink:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def size(self) -> int:
        """Return the number of bytes written so far, once all of them are on the disk."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(
    path: Path, kind: str | None = None, warn: Warn = warnings.warn, most: int | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a log, of one kind or all; none if there is no log.

    An incomplete last line is left out. Other lines that are not rows are skipped, and `warn` is
    called with one sentence.

    most: about how many rows of each kind to keep, evenly spread, so that memory does not grow with
        the log; None for all.
    """
    if not path.exists():
        warn(f"There is no log '{path}'.")
        return []
    kept: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    seen: Counter[str] = Counter()
    strides: dict[str, int] = {}
    members, bad = None, 0
    with path.open("rb") as file:
        for number, line in enumerate(file):
            row = _row(line)
            if row is not None and members is None:
                members = _num_members(row)
            if row is None or _num_members(row) not in (members, 0):
                bad += line.endswith(b"\n")
                continue
            name = row["kind"]
            if kind not in (None, name):
                continue
            rows, stride = kept.setdefault(name, []), strides.get(name, 1)
            if seen[name] % stride == 0:
                rows.append((number, row))
            seen[name] += 1
            if most is not None and len(rows) >= 2 * most:
                kept[name], strides[name] = rows[::2], 2 * stride
    if bad:
        which = "1 line is not a row" if bad == 1 else f"{bad} lines are not rows"
        warn(f"In the log '{path}' {which}; skipped.")
    return [row for _, row in sorted(itertools.chain(*kept.values()), key=lambda pair: pair[0])]


def series(rows: list[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the environment steps [K] and values [members, K] of a metric, NaN where missing.

    With several agents, `name` is the first one's metric.
    """
    found = [(row, row["metrics"].get(m.name_in(row["metrics"], name))) for row in rows]
    rows = [row for row, metric in found if metric is not None]
    values = [
        [np.nan if v is None else v for v in metric] for _, metric in found if metric is not None
    ]
    return np.asarray([row["steps"] for row in rows], float), np.asarray(values, float).T


def score_names(kind: str, metrics: Iterable[str], scores: Mapping[str, str]) -> dict[str, str]:
    """Return the metrics by which a run is judged, in rows of this kind: label -> metric.

    The first is the return (with several agents the first one's, as its label says), then the
    true return where the reward is another one, then the algorithm's and environment's own `scores`
    (metric -> label).
    """
    metrics = set(metrics)
    plain = "episode_return" if kind == "train" else "return"
    name = m.name_in(dict.fromkeys(metrics), plain)
    truth = m.name_in(dict.fromkeys(metrics), "true_return")
    labels = {
        name: f"return{m.agent_suffix(name, plain)}",
        truth: f"true return{m.agent_suffix(truth, 'true_return')}",
        **scores,
    }
    return {label: name for name, label in labels.items() if name in metrics}


def curves(
    rows: list[dict[str, Any]], scores: Mapping[str, str]
) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Return the `series` of every score with values: label -> kind of row -> (steps, values)."""
    found: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for kind in ("train", "evaluation"):
        own = [row for row in rows if row["kind"] == kind]
        names = (name for row in own for name in row["metrics"])
        for label, name in score_names(kind, names, scores).items():
            steps, values = series(own, name)
            if np.isfinite(values).any():
                found.setdefault(label, {})[kind] = steps, values
    return found


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line, or None if the line is not a row."""
    try:
        row = json.loads(line, parse_int=parse_int)
    except (ValueError, RecursionError):
        return None
    good = (
        isinstance(row, dict)
        and isinstance(row.get("kind"), str)
        and all(isinstance(row.get(name), int) for name in ("steps", "updates"))
        and isinstance(row.get("metrics"), dict)
    )
    if not good:
        return None
    # Older logs have single values.
    metrics = {name: x if isinstance(x, list) else [x] for name, x in row["metrics"].items()}
    same = len(set(map(len, metrics.values()))) <= 1
    return row | {"metrics": metrics} if same and all(map(_is_metric, metrics.values())) else None


def _is_metric(values: list[Any]) -> bool:
    return all(x is None or isinstance(x, int | float) for x in values)


def _num_members(row: dict[str, Any]) -> int:
    """Return the number of members in a row; 0 if it has no metrics."""
    return max(map(len, row["metrics"].values()), default=0)


def to_jsonable(value: Any) -> Any:
    """Convert `value` for JSON: arrays become lists, and numbers that are not finite None."""
    if isinstance(value, dict):
        return {k: to_jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return to_jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
