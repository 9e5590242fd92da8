"""Find algorithms by the names that configurations use."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from pathlib import Path
from typing import Any, Protocol

from jaxrl import envs
from jaxrl.core import plugins, settings
from jaxrl.core.errors import UserError
from jaxrl.core.types import Algorithm, Environment
from jaxrl.envs.wrappers import registry as wrappers
from jaxrl.kit import AlgorithmBuilder, DirectBuilder


@functools.cache
def built_in() -> dict[str, str]:
    """Return name -> `module:attribute` of every built-in algorithm: each file of a family that
    defines an `AlgorithmBuilder`, or a function that builds an `Algorithm`, of its own name."""
    files = [path for path in sorted(Path(__file__).parent.glob("*/*.py")) if _is_algorithm(path)]
    return {f.stem: f"jaxrl.algorithms.{f.parent.name}.{f.stem}:{f.stem}" for f in files}


def _is_algorithm(path: Path) -> bool:
    """Return whether a file defines an algorithm, by its text alone, without importing it."""
    name, text = path.stem, path.read_text(encoding="utf-8")
    return bool(
        re.search(rf"^{name} = |^def {name}\([^)]*(\(\))?\) -> Algorithm:", text, re.MULTILINE)
    )


def names() -> tuple[str, ...]:
    """Return the names of the built-in algorithms, sorted."""
    return tuple(sorted(built_in()))


class Build(Protocol):
    def __call__(self, env: Environment, config: Any, /) -> Algorithm:
        """Build an algorithm.

        env: the environment.
        config: the settings, an instance of the builder's class of configurations.
        """
        ...


def builder(name: str) -> tuple[Build, type]:
    """Return the builder called `name` and the class of its configurations.

    name: one of `names()`, or `my_package.module:build`, an `AlgorithmBuilder` or a function
        `build(env, config: Config) -> Algorithm` whose `config` is annotated with a frozen
        dataclass that has defaults for all fields.

    Raises `UserError` for a name that does not exist, and for a function that does not declare
    itself a builder, which is never called.
    """
    build = plugins.find("algorithm", name, built_in())
    if isinstance(build, AlgorithmBuilder | DirectBuilder):
        return build, build.Config
    hints = plugins.type_hints(build)
    config: Any = hints.get("config")
    if hints.get("return") is not Algorithm or not _is_config(config):
        raise UserError(
            f"The algorithm '{name}' must be a function build(env, config: Config) -> Algorithm, "
            "its config annotated with a frozen dataclass whose fields have defaults, its result "
            "with jaxrl.core.types.Algorithm."
        )
    return build, config


def _is_config(kind: Any) -> bool:
    """Return whether `kind` is a frozen dataclass that can be made without arguments."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return False
    missing = dataclasses.MISSING
    given = (f.default is not missing or f.default_factory is not missing or not f.init
             for f in dataclasses.fields(kind))  # fmt: skip
    return kind.__dataclass_params__.frozen and all(given)  # type: ignore[attr-defined]


def tiny(name: str) -> tuple[Environment, Any]:
    """Return an environment, and the smallest settings that take every branch of the algorithm
    `name` in it, which the contracts over all names run.

    They come from `TINY` in the algorithm's module: `env` and perhaps `env_params`, for
    `envs.make`, perhaps `wrappers`, and settings, whose names may be shortened. Raises `UserError`
    without `TINY`.
    """
    path = built_in().get(name, name)
    said = getattr(importlib.import_module(path.partition(":")[0]), "TINY", None)
    if said is None:
        raise UserError(f"The module of the algorithm '{name}' has no TINY settings.")
    own = {
        key: value for key, value in said.items() if key not in ("env", "env_params", "wrappers")
    }
    config = settings.replace(default_config(name), own)
    env = envs.make(said["env"], **said.get("env_params", {}))
    return wrappers.wrap(env, said.get("wrappers", ())), config


def default_config(name: str) -> Any:
    """Return the default configuration of the algorithm called `name`."""
    return builder(name)[1]()
