"""Parts by name: which names stand for code of other people, and which functions are builders."""

from __future__ import annotations

import functools
import subprocess
import timeit

import pytest

from jaxrl.core import plugins
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment


@pytest.mark.parametrize(
    "name",
    [
        "timeit:timeit",
        "my_package.environments:maze",
        "my-package.environments:maze",
        "jaxrl_extras.environments:maze",  # another package, whose name begins alike
        "gymnasium/my_package.environments:Maze-v0",
        "gymnasium/my package:Maze-v0",
    ],
)
def test_names_of_other_peoples_code(name):
    data = {"agent": {"parts": ("ewc", name)}, "steps": 3, "env_params": [{"game": name}]}
    assert plugins.foreign(data) == {name}
    assert plugins.foreign(name) == {name}


@pytest.mark.parametrize(
    "name",
    ["ppo", "brax/ant", "jaxrl.envs.classic.cartpole:cartpole", "jaxrl:make", "a: b", "/data/a:b"],
)
def test_names_that_import_no_code_of_other_people(name):
    assert not plugins.foreign({"env": name, "seeds": 3, "agent": None})


@pytest.mark.parametrize("name", ["timeit", "timeit:", ":timeit", "os :path", "os:path/a", ".:a"])
def test_texts_that_are_not_names_import_nothing(name):
    with pytest.raises(UserError, match="Unknown part"):
        plugins.find("part", name, {})


def build(size: int = 3) -> Environment:
    raise AssertionError("is not called")


def of_unknown_types() -> Nowhere:  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    raise AssertionError("is not called")


def test_type_hints_of_functions():
    wanted = {"size": int, "return": Environment}
    assert plugins.type_hints(build) == plugins.type_hints(functools.cache(build)) == wanted
    for other in (timeit.timeit, subprocess.run, len, 3, None, Environment, of_unknown_types):
        assert plugins.type_hints(other) == {}
