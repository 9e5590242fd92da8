"""Environments in which Minari's datasets were recorded.

Their names are those of the datasets, such as `minari/mujoco/halfcheetah/expert-v0`, which must be
on this machine (`minari download`). They run on the host, as Gymnasium's do (`adapters.gymnasium`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jaxrl.core import errors
from jaxrl.core.types import Environment
from jaxrl.envs.adapters import construct, package
from jaxrl.envs.adapters.gymnasium import describe

PREFIX = "minari/"


def builder(name: str) -> Callable[..., Environment]:
    """Return a function that describes the environment of the dataset `name`. Raises `UserError`
    if there is no such dataset on this machine."""
    local = sorted(construct(PREFIX + name, package("minari").list_local_datasets))
    if name not in local:
        raise errors.unknown("dataset on this machine", name, local)
    return functools.partial(build, name)


def build(name: str, evaluation: bool = False) -> Environment:
    """Describe the environment of the dataset `name`, or the one in which its policies are
    evaluated (`evaluation`)."""
    return describe(functools.partial(make, name, evaluation), PREFIX + name)


def make(name: str, evaluation: bool, **settings: Any) -> Any:
    """Make the environment of the dataset `name` as a `gymnasium.Env`."""
    return package("minari").load_dataset(name).recover_environment(evaluation, **settings)
