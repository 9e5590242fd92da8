"""Environments by name and by module, and the errors if there is none."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment

MODULE = """
    import dataclasses
    import jax.numpy as jnp
    import functools
    from jaxrl import envs
    from jaxrl.core.types import Environment, struct
    from jaxrl.envs.wrappers import observation_noise

    called = []

    @struct
    class Params:
        map: object
        size: int = 3
        windy: bool = False
        names: tuple = ()

    maze = dataclasses.replace(envs.make("cartpole"), name="maze", params=Params(jnp.zeros((2, 2))))
    noisy = observation_noise(maze, 0.25)
    noisier = observation_noise(noisy, 0.5)
    bare = dataclasses.replace(maze, name="bare", params=())
    nothing = 3

    def build() -> Environment:
        return dataclasses.replace(maze, name="built")

    @functools.cache
    def build_once() -> Environment:
        return dataclasses.replace(maze, name="built once")

    def build_sized(size) -> Environment:
        return maze

    def build_any(size: int = 3, kind: str = "round") -> Environment:
        return dataclasses.replace(maze, params=Params(jnp.zeros((2, 2)), size), name=kind)

    def build_nothing() -> Environment:
        return {}

    def undeclared(size: int = 3):
        called.append(size)
        return maze

    def otherwise_declared() -> dict:
        called.append(0)
        return {}

    class Undeclared:
        def __init__(self):
            called.append(0)
"""


@pytest.fixture
def environments(tmp_path, monkeypatch):
    """Name of a user's module that can be imported during the test."""
    (tmp_path / "their_envs.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "their_broken_envs.py").write_text("raise RuntimeError('no license')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_envs", raising=False)
    importlib.invalidate_caches()
    return "their_envs"


def test_every_name_makes_its_environment():
    assert envs.names() == tuple(sorted(envs.names()))
    for name in envs.names():
        env = envs.make(name)
        assert isinstance(env, Environment) and env.name == name


def test_the_same_arguments_give_the_same_object():
    from jaxrl.envs.classic.cartpole import cartpole

    assert envs.make("cartpole") is cartpole()
    assert envs.make("jaxrl.envs.classic.cartpole:cartpole") is cartpole()
    heavy = envs.make("cartpole", gravity=20, force=5.0)
    assert heavy is envs.make("cartpole", force=5, gravity=np.float32(20.0))
    assert heavy is not envs.make("cartpole", gravity=20)


def test_overrides_change_those_parameters_and_the_physics():
    usual, heavy = envs.make("pendulum"), envs.make("pendulum", gravity=20)
    assert (heavy.params.gravity, heavy.params.mass) == (20.0, usual.params.mass)
    assert isinstance(heavy.params.gravity, float)
    assert usual.params.gravity == 10.0
    state, _ = usual.reset(jax.random.key(0), usual.params)
    action = jnp.zeros((1,))
    speeds = [
        float(env.step(jax.random.key(0), state, action, env.params)[1].observation[2])
        for env in (usual, heavy)
    ]
    assert abs(speeds[0] - speeds[1]) > 0.01


@pytest.mark.slow
def test_environments_are_imported_only_on_demand():
    code = (
        "import sys; from jaxrl import envs; envs.names(); "
        "assert not [m for m in sys.modules if m.startswith(('jaxrl.envs.classic', 'PIL'))]; "
        "envs.make('pendulum'); assert 'jaxrl.envs.classic.pendulum' in sys.modules; "
        "assert 'jaxrl.envs.classic.acrobot' not in sys.modules and 'PIL' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_environments_in_a_users_module(environments):
    module = importlib.import_module(environments)
    assert envs.make(f"{environments}:maze") is module.maze
    built = envs.make(f"{environments}:build")
    assert built.name == "built"
    assert envs.make(f"{environments}:build") is built
    assert envs.make(f"{environments}:build_once") is module.build_once()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("their_envs:undeclared", {}),
        ("their_envs:undeclared", {"size": 4}),
        ("their_envs:otherwise_declared", {}),
        ("their_envs:Undeclared", {}),
        ("timeit:timeit", {"stmt": "import their_envs; their_envs.called.append(1)"}),
    ],
)
def test_only_functions_annotated_as_builders_are_called(environments, name, settings):
    with pytest.raises(UserError, match="not declared to return an Environment") as error:
        envs.make(name, **settings)
    assert f"`def {name.partition(':')[2]}() -> Environment`" in str(error.value)
    assert not importlib.import_module(environments).called


def test_a_redefined_environment_is_the_new_one(environments):
    module = importlib.import_module(environments)
    old = envs.make(f"{environments}:build"), envs.make(f"{environments}:maze", size=4)
    importlib.reload(module)
    assert envs.make(f"{environments}:build") is not old[0]
    assert envs.make(f"{environments}:maze", size=4) is not old[1]


def test_values_take_the_type_of_the_default(environments):
    env = envs.make(f"{environments}:maze", map=[[1, 2], [3, 4]], size=np.int64(5), windy=True)
    assert env is envs.make(
        f"{environments}:maze", map=np.array([[1, 2], [3, 4]]), size=5, windy=True
    )
    assert (env.params.size, env.params.windy) == (5, True)
    np.testing.assert_array_equal(env.params.map, np.array([[1, 2], [3, 4]], np.float32))
    assert env.params.map.dtype == jnp.float32


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("cartpol", {}, "Unknown environment 'cartpol'; did you mean 'cartpole'?"),
        ("zzz", {}, "Unknown environment 'zzz'; none of the "),
        (3, {}, "Unknown environment '3'"),
        ("their_envs:", {}, "Unknown environment 'their_envs:'"),
        (
            "cartpole",
            {"gravty": 1.0},
            "Unknown parameter of 'cartpole' 'gravty'; did you mean 'gravity'?",
        ),
        ("cartpole", {"gravity": "9.8"}, "'gravity' of 'cartpole' is '9.8'; it must be a number"),
        ("cartpole", {"gravity": True}, "'gravity' of 'cartpole' is True; it must be a number"),
        ("cartpole", {"gravity": None}, "'gravity' of 'cartpole' is None; it must be a number"),
        ("cartpole", {"gravity": float("nan")}, "is nan; it must be a number, such as 9.8"),
        ("cartpole", {"gravity": 1e300}, "is 1e+300; it must be a finite 32-bit number"),
        ("cartpole", {"gravity": float("inf")}, "is inf; it must be a finite 32-bit number"),
        ("cartpole", {"gravity": 10**400}, "it must be a finite 32-bit number, such as 9.8"),
        ("their_envs:maze", {"map": [[1, 2], [3, 1e300]]}, "it must hold finite 32-bit numbers"),
        ("their_envs:maze", {"size": 2.5}, "is 2.5; it must be an integer, such as 3"),
        ("their_envs:maze", {"windy": 1}, "is 1; it must be true or false"),
        ("their_envs:maze", {"map": [1.0]}, "it must be an array of numbers of shape (2, 2)"),
        ("their_envs:maze", {"names": ()}, "holds a tuple; only numbers, names and arrays"),
        ("their_envs:bare", {"size": 1}, "'bare' has no parameters, so 'size' cannot be set"),
        (
            "no_such_package.environments:maze",
            {},
            "'no_such_package.environments' of environment 'no_such_package.environments:maze' "
            "cannot be "
            "imported (ModuleNotFoundError: No module named 'no_such_package')",
        ),
        ("their_broken_envs:maze", {}, "cannot be imported (RuntimeError: no license)"),
        ("their_envs:mase", {}, "'mase'; did you mean 'maze'?"),
        ("math:maze", {}, "The module 'math' has no 'maze', nor any environment"),
        ("their_envs:nothing", {}, "'their_envs:nothing' is an int; it must be an Environment"),
        ("their_envs:build_nothing", {}, "returns a dict; it must return an Environment"),
        ("their_envs:build_sized", {}, "needs arguments (missing a required argument: 'size')"),
    ],
)
def test_errors_are_one_sentence(environments, name, params, message):
    with pytest.raises(UserError) as error:
        envs.make(name, **params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_are_arguments_of_the_builder_or_parameters(environments):
    name = f"{environments}:build_any"
    env = envs.make(name, size=7, kind="square", windy=True)
    assert (env.params.size, env.name, env.params.windy) == (7, "square", True)
    assert env is envs.make(name, windy=True, kind="square", size=np.int32(7))
    assert envs.make(name) is envs.make(name) is not env
    with pytest.raises(UserError, match=r"'size' of '.*build_any' is 'a'; it must be an integer"):
        envs.make(name, size="a")
    with pytest.raises(UserError, match=r"'kind' of '.*build_any' is 3; it must be a name"):
        envs.make(name, kind=3)
    with pytest.raises(UserError, match="did you mean 'kind'"):
        envs.make(name, knd="square")


def test_settings_are_what_make_accepts_with_their_defaults(environments):
    assert envs.settings("catch") == {"rows": 10, "columns": 5, "balls": 1, "delayed": False}
    found = envs.settings(f"{environments}:build_any")  # `names`, a tuple, cannot be set by name
    assert list(found) == ["size", "kind", "map", "windy"] and found["size"] == 3
    assert set(envs.settings(f"{environments}:noisy")) == {
        "map",
        "size",
        "windy",
        "observation_noise",
    }
    # Two parts have a parameter of that name, which does not say which one.
    assert set(envs.settings(f"{environments}:noisier")) == {"map", "size", "windy"}
    assert envs.settings(f"{environments}:bare") == {}
    with pytest.raises(UserError, match="did you mean 'cartpole'"):
        envs.settings("cartpol")
