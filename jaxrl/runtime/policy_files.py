"""Policies in files: their weights and their run's settings, or a compiled program.

From weights and settings jaxrl builds a policy again. Unlike a program, such a file is read by any
version of JAX, and its policy acts both greedily and at random.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Environment, Key, Policy, TimeStep, Tree
from jaxrl.export import compiled, operations
from jaxrl.export.acting import first_timestep
from jaxrl.runtime import configuration, run_folder
from jaxrl.runtime.building import build
from jaxrl.runtime.checkpoint_leaves import describe, empty_array, to_host, to_jax
from jaxrl.runtime.configuration import Experiment, Trust

ABOUT, WEIGHTS = "about.json", "weights.npz"  # in a file
SHIPPED = Path(__file__).parents[1] / "pretrained"
PREFIX, SUFFIX = "pretrained/", ".zip"


@dataclasses.dataclass(frozen=True)
class Stored:
    """A policy that was read from a file, without its run."""

    env: Environment
    """The environment that it was trained in."""
    policy: Policy
    config: Experiment
    """The settings of its run; of a compiled program those of the environment alone."""
    about: dict[str, Any]
    """The file's description."""
    is_greedy: bool
    """True if it always takes its most likely action, as compiled programs do."""


def write(env: Environment, policy: Policy, path: Path, about: dict[str, Any]) -> None:
    """Write those leaves of a policy's state that its actions depend on to `path`, a zip.

    about: a description, among it `settings`, all settings of the run (`configuration.to_dict`).
    """
    kept = _find_needed(env, policy)
    leaves, arrays = to_host(policy.state)
    named = {
        leaf.path: array for leaf, array, keep in zip(leaves, arrays, kept, strict=True) if keep
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(ABOUT, json.dumps(about, indent=1))
        with file.open(WEIGHTS, "w") as held:
            content: Any = named
            np.savez(held, **content)


def is_policy(name: str | Path) -> bool:
    """Return whether `name` is a file that `jaxrl export` wrote, or names a policy that comes with
    jaxrl, rather than a run's folder."""
    path = Path(name)
    return path.is_file() or (str(name).startswith(PREFIX) and not path.exists())


def load(name: str | Path, trust: Trust = False) -> Stored:
    """Load the policy that `name` stands for (`is_policy`).

    trust: as in `jaxrl.load`.

    Raises `UserError` as `read` does, and for a name that no policy of jaxrl has.
    """
    if not Path(name).is_file():
        return read(find(str(name).removeprefix(PREFIX)))
    if zipfile.is_zipfile(name) and WEIGHTS in zipfile.ZipFile(name).namelist():
        return read(Path(name), trust)
    program = compiled.load(Path(name))
    places = {key: program.about[key] for key in ("env", "env_params", "wrappers")}
    run_folder.check_trust(name, places, trust)
    config = configuration.experiment(places)
    return Stored(program.env, program.policy, config, program.about, is_greedy=True)


def read(path: Path, trust: Trust = False) -> Stored:
    """Read a policy that `write` wrote.

    trust: as in `jaxrl.load`.

    Raises:
        UserError: if `path` is no such file, if it does not fit this version's algorithm, or if it
            names code that is not trusted.
    """
    try:
        with zipfile.ZipFile(path) as file:
            about = json.loads(file.read(ABOUT))
            settings = dict(about["settings"])
            with file.open(WEIGHTS) as held:
                content = np.load(held)
                arrays = {name: content[name] for name in content.files}
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"'{path}' is no policy that jaxrl exported ({error}).") from error
    run_folder.check_trust(path, settings, trust)
    config = configuration.experiment(settings)
    env, algorithm = build(config)
    begin = lambda key: algorithm.policy(algorithm.init(key, algorithm.hyper))
    policy = jax.eval_shape(begin, random.key(0, config.generator))
    needed = _find_needed(env, policy)
    state = _fill(policy.state, needed, arrays, config.generator, path)
    policy = dataclasses.replace(policy, state=state)
    return Stored(env, policy, config, about, is_greedy=False)


def read_about(path: Path) -> dict[str, Any]:
    """Return the description of a policy that `write` wrote."""
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read(ABOUT))


def find(name: str) -> Path:
    """Return the file of a policy that comes with jaxrl, from a name such as `ppo-cartpole`.

    Raises `UserError` for a name that none has.
    """
    path = SHIPPED / f"{name}{SUFFIX}"
    if not path.is_file():
        raise unknown("pretrained policy", name, names())
    return path


def names() -> list[str]:
    """Return the names of the policies that come with jaxrl, sorted."""
    return sorted(path.stem for path in SHIPPED.glob(f"*{SUFFIX}"))


def _find_needed(env: Environment, policy: Policy) -> list[bool]:
    """Return of each leaf of a policy's state whether acting depends on it."""
    rest = jax.eval_shape(lambda: (policy.memory(1), random.key(0, "threefry2x32")))
    timestep = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), first_timestep(env)
    )

    def act(state: Tree, timestep: TimeStep, memory: Tree, key: Key) -> Tree:
        return [policy.act(state, timestep, memory, key, greedy)[:2] for greedy in (True, False)]

    program = operations.trace(act, policy.state, timestep, *rest)
    count = len(jax.tree.leaves(policy.state))
    return [number in program.dependencies for number in program.inputs[:count]]


def _fill(
    like: Tree, needed: list[bool], arrays: dict[str, np.ndarray], generator: str, path: Path
) -> Tree:
    """Return a state of the shapes `like` with the leaves `arrays`, by path, and zeros elsewhere.

    Raises `UserError` for an array that has no such leaf, and for a `needed` leaf without an array.
    """
    is_needed = iter(needed)

    def leaf(place: tuple[Any, ...], shape: Any) -> Any:
        wanted = describe(place, shape)
        kind = generator if wanted.generator is not None else None
        empty = empty_array(dataclasses.replace(wanted, generator=kind))
        if next(is_needed) and wanted.path not in arrays:
            raise UserError(f"'{path}' does not fit: it lacks '{wanted.path}', {wanted}.")
        found = arrays.pop(wanted.path, empty)
        if (found.shape, found.dtype) != (empty.shape, empty.dtype):
            raise UserError(
                f"'{path}' does not fit: its '{wanted.path}' is {found.dtype}{list(found.shape)} "
                f"instead of {wanted}."
            )
        return to_jax(found, kind)

    state = jax.tree_util.tree_map_with_path(leaf, like)
    if arrays:
        raise UserError(f"'{path}' does not fit: this algorithm has no '{next(iter(arrays))}'.")
    return state
