"""Minari's HDF5 files (the format of the Farama Foundation's offline datasets, version 0.5).

A file `main_data.hdf5` has a group `episode_I` for each episode, with `observations` [T + 1],
`actions` [T], `rewards` [T], `terminations` [T] and `truncations` [T]. Spaces that are dictionaries
or tuples are groups in turn. The file metadata.json lies beside it. Reading and writing need h5py
(`pip install "jaxrl-research[datasets]"`).
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Transition
from jaxrl.datasets import hdf5
from jaxrl.datasets.data import Dataset, References
from jaxrl.datasets.transitions import FIELDS, cut, from_episodes, spans

MAIN = "main_data.hdf5"
GOAL = ("observation", "desired_goal", "achieved_goal")  # of Gymnasium-Robotics' goal environments


def read(path: Path) -> Dataset:
    """Read the episodes of a Minari dataset, from the path of its folder or of its main_data.hdf5.
    (`transitions.from_episodes` serves for other formats.)

    The observation of a goal environment (a dictionary of observation, desired_goal and
    achieved_goal) becomes an observation and a goal. Reference scores are taken from the metadata
    if they are there.

    Raises `UserError` for a file that is not such a dataset (as `hdf5.read` and `from_episodes`
    do), and for metadata that cannot be read.
    """
    path = _main(path)
    try:
        groups = hdf5.read(path, _is_wanted)
        transitions = from_episodes([_episode(name, groups[name]) for name in _in_order(groups)])
        return Dataset(str(path), transitions, _references(path.parent / "metadata.json"))
    except UserError as error:
        raise UserError(f"'{path}' is not a dataset in Minari's format: {error}") from error


def _main(path: Path) -> Path:
    try:
        if not path.is_dir():
            return path
        found = [p for p in (path / MAIN, path / "data" / MAIN) if p.exists()]
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}).") from error
    if not found:
        raise UserError(f"'{path}' holds no {MAIN}, nor data/{MAIN}.")
    return found[0]


def _is_wanted(place: tuple[str, ...]) -> bool:
    """Return whether an object is read. Infos are not, which hold whatever an environment adds."""
    return place[0].startswith("episode_") and (len(place) == 1 or place[1] in FIELDS)


def _in_order(groups: dict[str, Any]) -> list[str]:
    for name in groups:
        if not re.fullmatch(r"episode_[0-9]{1,18}", name):
            raise UserError(f"the group {name!r} is named like an episode, but has no number.")
    return sorted(groups, key=lambda name: int(name.removeprefix("episode_")))


def _episode(name: str, group: Any) -> dict[str, Any]:
    if not isinstance(group, dict):
        raise UserError(f"{name!r} is an array; it must be a group with {', '.join(FIELDS)}.")
    episode = {field: _tuples(part, f"{name}/{field}") for field, part in group.items()}
    observation = episode.get("observations")
    if isinstance(observation, dict) and set(observation) == set(GOAL):
        episode |= {"observations": observation[GOAL[0]], "goal": observation[GOAL[1]]}
    return episode


def _tuples(node: Any, where: str) -> Any:
    """Convert the groups that stand for tuples to tuples."""
    if not isinstance(node, dict):
        return node
    if not node:
        raise UserError(f"{where!r} is a group without an array.")
    parts = {name: _tuples(part, f"{where}/{name}") for name, part in node.items()}
    if not all(name.startswith("_index_") for name in parts):
        return parts
    names = [f"_index_{i}" for i in range(len(parts))]
    if set(parts) != set(names):
        raise UserError(f"{where!r} is a tuple of {', '.join(parts)}; it must have {names}.")
    return tuple(parts[name] for name in names)


def write(path: Path, data: Dataset) -> None:
    """Write `data` to `path`, an HDF5 file that `read` reads, and the minari package too if it lies
    in the folder of a dataset beside metadata.json.

    A goal is written as goal environments do, with an achieved goal of zeros. The file is written
    beside `path` and then renamed, so an existing file is replaced by a whole one or stays. Raises
    `UserError` if it cannot be written.
    """
    h5py = hdf5.package()
    x = data.transitions
    draft = path.parent / f".new-{uuid.uuid4().hex[:12]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with h5py.File(draft, "w", track_order=True) as file:
                for number, rows in enumerate(spans(x)):
                    _write_episode(file.create_group(f"episode_{number}"), number, x, rows)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"'{path}' cannot be written ({error}).") from error


def _write_episode(group: Any, number: int, x: Transition, rows: slice) -> None:
    group.attrs["id"] = number
    group.attrs["total_steps"] = rows.stop - rows.start
    _put(group, "observations", _observations(x, rows))
    _put(group, "actions", cut(x.action, rows))
    flags = {"rewards": x.reward, "terminations": x.terminated, "truncations": x.truncated}
    for name, values in flags.items():
        group.create_dataset(name, data=np.asarray(values)[rows])


def _observations(x: Transition, rows: slice) -> Any:
    """Return all T + 1 observations of an episode: before each step, and after the last one."""

    def whole(before, after):
        return jax.tree.map(
            lambda a, b: np.concatenate([a[rows], b[rows.stop - 1 : rows.stop]]), before, after
        )

    observation = whole(x.observation, x.next_observation)
    if x.timestep.goal is None:
        return observation
    goal = whole(x.timestep.goal, x.next_timestep.goal)
    return dict(zip(GOAL, (observation, goal, np.zeros_like(goal)), strict=True))


def _put(group: Any, name: str, tree: Any) -> None:
    if isinstance(tree, dict):
        for key, part in tree.items():
            _put(group.require_group(name), key, part)
    elif isinstance(tree, tuple | list):
        for i, part in enumerate(tree):
            _put(group.require_group(name), f"_index_{i}", part)
    else:
        group.create_dataset(name, data=np.asarray(tree))


def _references(path: Path) -> References | None:
    """Read the references in the metadata; None if there are none, or no metadata."""
    try:
        if not path.is_file():
            return None
        known = json.loads(path.read_text(encoding="utf-8"))
        scores = [known.get(name) for name in ("ref_min_score", "ref_max_score")]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"its metadata.json cannot be read ({error}).") from error
    return None if None in scores else References(*scores)
