"""Names of other packages' environments, and errors without the packages."""

from __future__ import annotations

import inspect
import sys

import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs import adapters


@pytest.fixture
def fresh():
    adapters.builder.cache_clear()
    yield
    adapters.builder.cache_clear()


@pytest.mark.parametrize(
    "name,package,extra",
    [
        ("gymnax/CartPole-v1", "gymnax", "suites"),
        ("brax/ant", "brax", "suites"),
        ("pgx/tic_tac_toe", "pgx", "suites"),
        ("jumanji/Snake-v1", "jumanji", "suites"),
        ("navix/Navix-Empty-5x5-v0", "navix", "suites"),
        ("playground/CartpoleBalance", "mujoco_playground", "playground"),
        ("craftax/Craftax-Classic-Symbolic-v1", "craftax", "craftax"),
        ("xland/MiniGrid-Empty-8x8", "xminigrid", "xland"),
        ("jaxmarl/MPE_simple_spread_v3", "jaxmarl", "jaxmarl"),
    ],
)
def test_a_missing_package_is_one_sentence(name, package, extra, fresh, monkeypatch):
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    expected = rf"^The package '{package}' is not installed; pip install -e '.\[{extra}\]' in"
    with pytest.raises(UserError, match=expected):
        envs.make(name)


def test_a_broken_package_says_what_is_wrong(fresh, monkeypatch, tmp_path):
    (tmp_path / "pgx.py").write_text("import a_thing_that_is_gone")
    for module in [m for m in sys.modules if m.partition(".")[0] == "pgx"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"'pgx' cannot be imported .*a_thing_that_is_gone"):
        envs.make("pgx/tic_tac_toe")
    monkeypatch.delitem(sys.modules, "pgx", raising=False)


def test_unknown_names_list_the_nearest():
    with pytest.raises(UserError, match="Unknown suite 'gymnaks'; did you mean 'gymnax'"):
        envs.make("gymnaks/CartPole-v1")
    with pytest.raises(UserError, match="did you mean 'gymnasium/Acrobot-v1'"):
        envs.make("gymnasium/Acrobat-v1")


def test_the_same_name_is_the_same_object():
    env = envs.make("gymnasium/CartPole-v1")
    assert env is envs.make("gymnasium/CartPole-v1")
    assert env.name == "gymnasium/CartPole-v1" and env.max_steps == 500


def test_settings_that_a_package_does_not_know_are_rejected():
    with pytest.raises(UserError, match=r"cannot be made .*unexpected keyword argument 'gravity'"):
        envs.make("gymnasium/CartPole-v1", gravity=1.0)


@pytest.mark.slow
def test_the_suites_are_not_imported_with_the_environments():
    import subprocess

    code = "import sys; from jaxrl import envs; envs.make('cartpole'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & set(adapters.SUITES)


def test_settings_that_only_a_suite_knows_are_keyword_arguments():
    defaults = {"size": 5, "view": "whole"}
    build = adapters.SettingsBuilder(lambda given: envs.make("empty", **given), defaults)
    assert {k: p.default for k, p in inspect.signature(build).parameters.items()} == defaults
    assert build(size=7).observation_space.shape[0] == 7
    with pytest.raises(TypeError, match="width"):
        build(width=3)
