"""Datasets in files, whose format is told from the path:

- Minari's folder, or its main_data.hdf5 (`minari_format`);
- D4RL's HDF5 (Fu et al., 2020, arXiv:2004.07219), whose arrays `observations`, `actions`,
  `rewards`, `terminals`, and perhaps `timeouts` and `next_observations`, have a row for each step;
- Parquet with an episode in each row, as on Hugging Face (`parquet`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UserError
from jaxrl.datasets import hdf5, minari_format, parquet
from jaxrl.datasets.data import Dataset
from jaxrl.datasets.transitions import STEPS, from_steps

ENDINGS = (".hdf5", ".h5", ".parquet")
ROWS = (*STEPS, "timeouts", "next_observations")  # of D4RL


def read(path: Path) -> Dataset:
    """Read the dataset at `path`.

    Rows of D4RL and Parquet become episodes by `transitions.from_steps`, which says what is known
    of an episode's end.

    Raises `UserError` for a file in none of these formats, or one that is damaged.
    """
    if path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        return _read(path, parquet.read, "in Parquet")
    if _has_rows(path):
        return _read(path, _d4rl, "in D4RL's format")
    return minari_format.read(path)


def _has_rows(path: Path) -> bool:
    try:
        return path.is_file() and "observations" in hdf5.members(path)
    except UserError:
        return False  # which `minari_format` says the reason of


def _read(path: Path, steps: Callable[[Path], Mapping[str, Any]], what: str) -> Dataset:
    try:
        return Dataset(str(path), from_steps(steps(path)))
    except UserError as error:
        raise UserError(f"'{path}' is not a dataset {what}: {error}") from error


def _d4rl(path: Path) -> Mapping[str, Any]:
    return hdf5.read(path, lambda place: place[0] in ROWS)
