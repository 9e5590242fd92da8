"""Parquet files with an episode in each row, as Hugging Face shows datasets of control: lists
`observations`, `actions`, `rewards` and `dones` of the episode's steps (its copy of D4RL for
decision transformers). Reading needs pyarrow (`pip install "jaxrl-research[datasets]"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError

LISTS = ("observations", "actions", "rewards", "dones")


def read(path: Path) -> Mapping[str, np.ndarray]:
    """Return the steps of a file, or of a folder of files, as `transitions.from_steps` takes them.

    The last step of an episode that is not done is a timeout.

    Raises `UserError`, which does not name the file, for one that is not Parquet or lacks a column,
    episodes whose lists differ in length, and observations or actions whose sizes differ.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            'Reading Parquet needs pyarrow: pip install "jaxrl-research[datasets]".'
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(
            f"it cannot be read as Parquet ({' '.join(str(error).split())})."
        ) from error
    if missing := [name for name in LISTS if name not in table.column_names]:
        raise UserError(f"it has no column {' and none '.join(missing)}.")
    lists = {name: table.column(name).combine_chunks() for name in LISTS}
    lengths = {name: _lengths(name, x) for name, x in lists.items()}
    for name, length in lengths.items():
        for row in np.flatnonzero(length != lengths["rewards"])[:1]:
            raise UserError(
                f"the episode in row {row} has {lengths['rewards'][row]} rewards and {length[row]} "
                f"{name}."
            )
    steps = {name: _values(name, x.flatten()) for name, x in lists.items()}
    last = np.zeros(len(steps["dones"]), bool)
    last[np.cumsum(lengths["rewards"])[lengths["rewards"] > 0] - 1] = True
    return {
        "observations": steps["observations"],
        "actions": steps["actions"],
        "rewards": steps["rewards"].reshape(len(last)),
        "terminals": steps["dones"].reshape(len(last)),
        "timeouts": last,
    }


def _lengths(name: str, lists: Any) -> np.ndarray:
    """Return the number of elements of each list. Raises `UserError` unless all are lists."""
    from pyarrow import types

    kind = lists.type
    if not (types.is_list(kind) or types.is_large_list(kind)) or lists.null_count:
        raise UserError(f"its column {name!r} has {kind}; it must have a list in each row.")
    return lists.value_lengths().to_numpy(zero_copy_only=False)


def _values(name: str, values: Any) -> np.ndarray:
    """Return numbers, or lists of numbers of one length, as an array."""
    from pyarrow import types

    shape = [len(values)]
    while types.is_nested(values.type):
        sizes = np.unique(_lengths(name, values))
        if len(sizes) > 1:
            raise UserError(
                f"its {name} have {sizes[0]} numbers in one step and {sizes[1]} in another."
            )
        shape.append(int(sizes[0]) if len(sizes) else 0)
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False).reshape(shape)
