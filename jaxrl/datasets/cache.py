"""Datasets by name: made once, kept in the user's cache folder, and checked when they are read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import sys
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Environment, TimeStep, Transition
from jaxrl.datasets import making
from jaxrl.datasets.data import Dataset, References, conform, join, profile

NAMES = (*making.KINDS, "medium-expert", "mixed")
FORMAT = 2  # of the files, and of how the sets are made
# What reading JSON and .npz files raises where they are not what they should be.
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError)
DAMAGE += (MemoryError, zipfile.BadZipFile, zlib.error)


def load(env: Environment, name: str, size: int = 50_000, seed: int = 0) -> Dataset:
    """The dataset `name` of `env`: one of `NAMES`, made from `seed` with about `size` steps if it
    is not in the cache yet (which takes a training run), or the path of a file in Minari's format.

    A name stands for the dataset also where there is a file of that name (`./medium` is the file).

    Raises `UserError` for another name, a file that is not as it was written, one that is not about
    this environment (see `conform`), and a cache that cannot be written.
    """
    if name not in NAMES:
        if name.endswith((".hdf5", ".h5")) or os.path.exists(name):
            from jaxrl.datasets import minari_format

            return conform(minari_format.read(Path(name)), env)
        raise unknown("dataset or file", name, NAMES)
    if name in ("medium-expert", "mixed"):
        halves = [load(env, kind, size, seed) for kind in ("medium", "expert")]
        return join(name, halves)
    folder = _folder(env, size, seed)
    if not os.path.exists(folder):
        with _writing():
            _draft(folder).rmdir()  # before the training, of which nothing would be left
        print(f"Making the datasets of '{env.name}' (once, in {folder}) ...", file=sys.stderr)
        write(folder, making.make(env, size, seed))
    return read(folder, name, env)


def root() -> Path:
    """The folder of all datasets. Raises `UserError` where the user has no folder."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no HOME, and nothing is known of this user
        raise UserError("There is no home folder; set XDG_CACHE_HOME to a folder.") from None
    return Path(cache) / "jaxrl" / "datasets"


def _folder(env: Environment, size: int, seed: int) -> Path:
    """Where the sets lie: another folder for whatever they depend on that can be told."""
    what = {
        "format": FORMAT,
        "size": size,
        "seed": seed,
        "generator": random.default_generator(),
        "recipe": dataclasses.asdict(making.recipe(env)),
        "spaces": [repr(env.observation_space), repr(env.action_space)],
        "max_steps": env.max_steps,
        "params": [np.asarray(x).tolist() for x in jax.tree.leaves(env.params)],
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()
    stem = "".join(c if c.isalnum() else "_" for c in env.name)
    return root() / f"{stem}-{seed}-{digest[:12]}"


# ------------------------------------------------------------------------------- files


def write(folder: Path, sets: dict[str, Dataset]) -> None:
    """One .npz file a set, and profile.json with what is in them and their SHA-256. Written beside
    and renamed, so that no half-made folder is ever seen. Raises `UserError` where they cannot be
    written."""
    with _writing():
        draft = _draft(folder)
        try:
            profiles = {}
            for name, data in sets.items():
                path = draft / f"{name}.npz"
                with path.open("wb") as file:
                    np.savez_compressed(file, allow_pickle=False, **_named(data.transitions))
                profiles[name] = profile(data) | {"sha256": _sha256(path)}
            (draft / "profile.json").write_text(json.dumps(profiles, indent=2))
            try:
                draft.rename(folder)
            except OSError:  # another process made it in the meantime
                if not (folder / "profile.json").exists():
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Datasets cannot be kept ({error}); set XDG_CACHE_HOME to a folder that can be "
            "written."
        ) from error


def _draft(folder: Path) -> Path:
    """A new folder beside `folder`."""
    draft = folder.parent / f".new-{uuid.uuid4().hex[:12]}"
    draft.mkdir(parents=True)
    return draft


def read(folder: Path, name: str, env: Environment) -> Dataset:
    """The set `name` that `write` wrote. Raises `UserError` if it is not as it was written, or not
    about `env`."""
    path = folder / f"{name}.npz"
    try:
        known = json.loads((folder / "profile.json").read_text(encoding="utf-8"))[name]
        if _sha256(path) != known["sha256"]:
            raise ValueError("its checksum differs from that in profile.json")
        with np.load(path, allow_pickle=False) as file:
            transitions = _placed(dict(file), env)
        return conform(Dataset(name, transitions, References(**known["references"])), env)
    except DAMAGE as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"'{path}' is not as it was written ({said}); remove the folder {folder}, and it is "
            "made again."
        ) from error


@functools.cache
def _sha256_of(path: Path, stamp: tuple[int, int]) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_of(path, (status.st_mtime_ns, status.st_size))


def _named(transitions: Transition) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(transitions)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _placed(arrays: dict[str, np.ndarray], env: Environment) -> Transition:
    """The arrays in the tree that `env` makes; one that is missing raises a KeyError."""

    def reset(key: Any) -> TimeStep:
        return env.reset(key, env.params)[1]

    timestep = jax.eval_shape(reset, jax.random.key(0))
    action = jax.tree.map(lambda s: 0, env.action_space, is_leaf=lambda s: hasattr(s, "dtype"))
    tree = Transition(timestep, action, timestep, (), {})
    return jax.tree_util.tree_map_with_path(
        lambda path, _: arrays[jax.tree_util.keystr(path)], tree
    )
