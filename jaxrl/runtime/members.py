"""The members of a run, trained side by side: seeds, and the points of a sweep."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.runtime import files
from jaxrl.runtime.configuration import Experiment

SWEEP = "sweep.json"  # in a folder whose runs together are a sweep
RANKING = "ranking.csv"  # in the folder of a sweep: its points, the best first


@dataclasses.dataclass(frozen=True)
class Members:
    """The members trained side by side in one program, each with its seed and hyperparameters."""

    labels: list[dict[str, float]]  # for each member: its seed, and the settings it differs in
    hyper: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # name -> [members]
    # For each member of a fork: the member of the forked run whose state it continues from.
    parents: list[int] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def keys(self, generator: str) -> jax.Array:
        """Return a key for each member [members]; a single key has no leading axis."""
        seed_members = np.asarray([label["seed"] for label in self.labels], np.uint32)
        make = lambda seed: random.key(seed, generator)
        return make(int(seed_members[0])) if len(self) == 1 else jax.vmap(make)(seed_members)

    def name(self, member: int) -> str:
        """Return a member's label, such as `seed 0, learning_rate 0.001`."""
        return ", ".join(f"{name} {value:.6g}" for name, value in self.labels[member].items())

    def by_setting(self) -> dict[str, list[int]]:
        """Return the members by the settings, except seeds, that they differ in ('' for none)."""
        groups: dict[str, list[int]] = {}
        for i, label in enumerate(self.labels):
            parts = [f"{name} {value:.6g}" for name, value in label.items() if name != "seed"]
            groups.setdefault(", ".join(parts), []).append(i)
        return groups

    def own_hyper(self) -> dict[str, np.ndarray]:
        """Return the hyperparameters as `Program.start` takes them."""
        return {k: v[0] for k, v in self.hyper.items()} if len(self) == 1 else self.hyper

    def write(self, path: Path) -> None:
        """Write the members to a JSON file."""
        hyper = {name: values.tolist() for name, values in self.hyper.items()}
        parents = {"parents": self.parents} if self.parents else {}
        files.write_text(path, json.dumps({"labels": self.labels, "hyper": hyper} | parents))

    @staticmethod
    def read(path: Path) -> Members:
        """Read the members that `write` wrote. Raises `ValueError` for other contents."""
        data = files.read_json(path)
        _check(data)
        hyper = {name: np.asarray(v, np.float32) for name, v in data["hyper"].items()}
        return Members(data["labels"], hyper, data.get("parents", []))


def seed_members(config: Experiment) -> Members:
    """Return a member for each of the configuration's seeds."""
    return Members([{"seed": config.seed + i} for i in range(config.seeds)])


def is_sweep(folder: str | Path) -> bool:
    """Return whether `folder` is a sweep: several runs, or a run whose members' hypers differ."""
    return has_many_runs(Path(folder)) or bool(read_members(Path(folder)).hyper)


def has_many_runs(folder: Path) -> bool:
    """Return whether `folder` holds the runs of a sweep."""
    return (folder / SWEEP).is_file()


def read_members(folder: Path) -> Members:
    """Return the members of the run in `folder`. Raises `UserError` if they cannot be read."""
    if has_many_runs(folder):
        raise UserError(f"'{folder}' holds the runs of a sweep; name one of its folders.")
    try:
        return Members.read(folder / "members.json")
    except (OSError, ValueError) as error:
        raise UserError(f"'{folder / 'members.json'}' cannot be read: {error}.") from error


def _check(data: Any) -> None:
    """Raise `ValueError` unless `data` is what `Members.write` writes."""
    if not isinstance(data, dict) or data.keys() - {"parents"} != {"labels", "hyper"}:
        raise ValueError("it must hold a mapping of labels and hyper")
    labels, hyper = data["labels"], data["hyper"]
    if not isinstance(labels, list) or not labels or not all(map(_is_label, labels)):
        raise ValueError(
            "labels must be a list of mappings from names, seed among them, to numbers"
        )
    if not isinstance(hyper, dict):
        raise ValueError("hyper must be a mapping")
    for name, values in hyper.items():
        if not isinstance(values, list) or not all(map(_is_number, values)):
            raise ValueError(f"hyper.{name} must be a list of numbers")
        if len(values) != len(labels):
            raise ValueError(f"hyper.{name} has {len(values)} values for {len(labels)} members")
    parents = data.get("parents", [])
    if not isinstance(parents, list) or not all(type(x) is int and x >= 0 for x in parents):
        raise ValueError("parents must be a list of members, counted from 0")
    if parents and len(parents) != len(labels):
        raise ValueError(f"it has {len(parents)} parents for {len(labels)} members")


def _is_label(label: Any) -> bool:
    if not isinstance(label, dict) or not all(map(_is_number, label.values())):
        return False
    return isinstance(label.get("seed"), int) and 0 <= label["seed"] < 2**32


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float)
