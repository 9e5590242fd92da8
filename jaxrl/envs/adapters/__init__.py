"""Environments of other packages, by names such as `brax/ant`; imported only on use."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from jaxrl.core import errors, plugins
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment

SUITES = (
    "brax",
    "craftax",
    "dm_control",
    "envpool",
    "gymnasium",
    "gymnax",
    "jaxmarl",
    "jumanji",
    "minari",
    "navix",
    "ogbench",
    "pgx",
    "playground",
    "xland",
)  # each a module here with a `builder`


@functools.cache
def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of `suite/environment`; the same name gives the same object.

    Raises `UserError` for a suite that does not exist or is not installed, and for an environment
    that the suite does not have, naming the nearest.
    """
    suite, _, environment = name.partition("/")
    if suite not in SUITES:
        raise errors.unknown("suite", suite, SUITES)
    return importlib.import_module(f"jaxrl.envs.adapters.{suite}").builder(environment)


def package(name: str, extra: str = "suites") -> ModuleType:
    """Import a package from an extra of jaxrl's own, as `plugins.package` does."""
    return plugins.package(name, extra)


def check_name(suite: str, name: str, known: Iterable[str]) -> None:
    """Raise `UserError`, naming the nearest, unless the suite has an environment of this name."""
    known = sorted(known)
    if name not in known:
        raise errors.unknown(
            "environment", f"{suite}/{name}", [f"{suite}/{other}" for other in known]
        )


def construct(name: str, constructor: Callable[[], Any]) -> Any:
    """Call `constructor`, which may fetch data first. Raises `UserError` if it raises."""
    try:
        return constructor()
    except UserError:
        raise
    except Exception as error:  # whatever goes wrong inside someone else's package
        raise UserError(
            f"The environment '{name}' cannot be made ({type(error).__name__}: {error})."
        ) from error


@dataclasses.dataclass(frozen=True, eq=False)
class SettingsBuilder:
    """Builder of one environment whose keyword arguments only its suite knows."""

    build: Callable[[dict[str, Any]], Environment]
    """Builds the environment from the settings that were given, by name."""
    defaults: Mapping[str, Any]
    """All settings with their defaults."""

    @property
    def __signature__(self) -> inspect.Signature:
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(k, keyword, default=v) for k, v in self.defaults.items()]
        return inspect.Signature(parameters)

    def __call__(self, **settings: Any) -> Environment:
        return self.build(self.__signature__.bind(**settings).arguments)
