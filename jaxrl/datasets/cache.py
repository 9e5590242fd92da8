"""The cache of datasets: made once, kept in the user's cache folder, and checked when read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import shutil
import sys
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, TimeStep, Transition
from jaxrl.datasets.data import Dataset, References, conform, profile

FORMAT = 2  # version of the files, and of how datasets are made
# Errors of reading JSON and .npz files that are not what they should be.
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError)
DAMAGE += (MemoryError, zipfile.BadZipFile, zlib.error)


def load(
    env: Environment,
    name: str,
    *,
    size: int,
    seed: int,
    recipe: Mapping[str, Any],
    make: Callable[[], dict[str, Dataset]],
) -> Dataset:
    """Return one of the datasets that `make` makes for `env`, and that the cache then holds.

    name: a key of the result of `make`.
    size, seed, recipe: what the datasets are made from, besides the environment. Datasets that
        differ in any of it lie in different folders.
    make: makes all datasets of the folder, by name; called if they are not in the cache.

    Raises `UserError` for a file that is not as it was written or not about this environment (see
    `conform`), and for a cache that cannot be written.
    """
    folder = _folder(env, size, seed, recipe)
    if not os.path.exists(folder):
        with _writing():
            _draft(folder).rmdir()  # tried before the work of making, which would be lost
        print(f"Making the datasets of '{env.name}' (once, in {folder}) ...", file=sys.stderr)
        write(folder, make())
    return read(folder, name, env)


def root() -> Path:
    """Return the folder of all datasets. Raises `UserError` if the user has no home folder."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # HOME is not set, and the system does not know this user
        raise UserError("There is no home folder; set XDG_CACHE_HOME to a folder.") from None
    return Path(cache) / "jaxrl" / "datasets"


def _folder(env: Environment, size: int, seed: int, recipe: Mapping[str, Any]) -> Path:
    """Return the folder of datasets, named after everything known that they depend on."""
    what = {
        "format": FORMAT,
        "size": size,
        "seed": seed,
        "generator": random.default_generator(),
        "recipe": dict(recipe),
        "spaces": [repr(env.observation_space), repr(env.action_space)],
        "max_steps": env.max_steps,
        "params": [np.asarray(x).tolist() for x in jax.tree.leaves(env.params)],
        "rules": [_digest_of(function, {}) for function in (env.reset, env.step)],
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()
    stem = "".join(c if c.isalnum() else "_" for c in env.name)
    return root() / f"{stem}-{seed}-{digest[:12]}"


def _digest_of(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """Return what a function closes over, such as the settings that an environment was built with,
    as a digest that is the same in every process and for every version of JAX.

    Functions are known by their names, and what is neither data nor a function of Python (objects
    of another package) by its type alone. known: by their ids, values and their digests.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if id(value) not in known:
        known[id(value)] = value, "itself"  # where it is met again within itself
        text = json.dumps(_parts(value, lambda part: _digest_of(part, known)))
        known[id(value)] = value, hashlib.sha256(text.encode()).hexdigest()
    return known[id(value)][1]


def _parts(value: Any, held: Callable[[Any], Any]) -> Any:
    """Return a value that is not plain as lists of names and of what is `held` of its parts."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return [str(array.dtype), list(array.shape), content]
    if isinstance(value, functools.partial):
        return [held(value.func), [*map(held, value.args)], _parts(value.keywords, held)]
    if isinstance(value, Mapping):
        return [[str(key), held(x)] for key, x in sorted(value.items(), key=lambda x: str(x[0]))]
    if isinstance(value, list | tuple):
        return [*map(held, value)]
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [name, *(held(getattr(value, field.name)) for field in dataclasses.fields(value))]
    if inspect.ismethod(value):
        return [name, held(value.__self__)]
    function = inspect.unwrap(value) if callable(value) else value
    if not inspect.isfunction(function):
        return [name]
    bound = inspect.getclosurevars(function).nonlocals
    defaults = function.__defaults__, function.__kwdefaults__
    return [function.__module__, function.__qualname__, _parts(bound, held), *map(held, defaults)]


# ------------------------------------------------------------------------------- files


def write(folder: Path, sets: dict[str, Dataset]) -> None:
    """Write a .npz file for each dataset, and profile.json with their profiles and SHA-256 sums.

    The folder is written beside its place and then renamed, so that nobody sees it half-written.
    Raises `UserError` if it cannot be written.
    """
    with _writing():
        draft = _draft(folder)
        try:
            profiles = {}
            for name, data in sets.items():
                path = draft / f"{name}.npz"
                with path.open("wb") as file:
                    np.savez_compressed(file, allow_pickle=False, **_to_arrays(data.transitions))
                profiles[name] = profile(data) | {"sha256": _sha256(path)}
            (draft / "profile.json").write_text(json.dumps(profiles, indent=2))
            try:
                draft.rename(folder)
            except OSError:  # perhaps another process made it in the meantime
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
    """Make a new folder beside `folder`."""
    draft = folder.parent / f".new-{uuid.uuid4().hex[:12]}"
    draft.mkdir(parents=True)
    return draft


def read(folder: Path, name: str, env: Environment) -> Dataset:
    """Read the dataset `name` that `write` wrote. Raises `UserError` if it is not as it was
    written, or not about `env`."""
    path = folder / f"{name}.npz"
    try:
        known = json.loads((folder / "profile.json").read_text(encoding="utf-8"))[name]
        if _sha256(path) != known["sha256"]:
            raise ValueError("its checksum differs from that in profile.json")
        with np.load(path, allow_pickle=False) as file:
            transitions = _from_arrays(dict(file), env)
        return conform(Dataset(name, transitions, References(**known["references"])), env)
    except DAMAGE as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"'{path}' is not as it was written ({said}); remove the folder {folder} to make it "
            "again."
        ) from error


@functools.cache
def _sha256_of(path: Path, stamp: tuple[int, int]) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_of(path, (status.st_mtime_ns, status.st_size))


def _to_arrays(transitions: Transition) -> dict[str, np.ndarray]:
    """Name the arrays of transitions by their paths."""
    leaves = jax.tree_util.tree_flatten_with_path(transitions)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _from_arrays(arrays: dict[str, np.ndarray], env: Environment) -> Transition:
    """Invert `_to_arrays` for transitions of `env`. Raises `KeyError` for a missing array."""

    def reset(key: Any) -> TimeStep:
        return env.reset(key, env.params)[1]

    timestep = jax.eval_shape(reset, jax.random.key(0))
    action = jax.tree.map(lambda s: 0, env.action_space, is_leaf=lambda s: hasattr(s, "dtype"))
    tree = Transition(timestep, action, timestep, (), {})
    return jax.tree_util.tree_map_with_path(
        lambda path, _: arrays[jax.tree_util.keystr(path)], tree
    )
