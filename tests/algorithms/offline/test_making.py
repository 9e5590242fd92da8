"""Datasets are made from a training run, once, and are the same from the same seed."""

import dataclasses

import numpy as np
import pytest

from experiments import dataset as script
from jaxrl import envs
from jaxrl.algorithms.offline.shared import making
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.commands import command_line
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.datasets.data import Dataset, References
from jaxrl.envs.policies import random_policy
from tests.datasets.files import counted_steps, environment
from tests.learning.probes import PROBES, probe


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Use a new cache, and an environment that PPO learns at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(making, "PARTS", 4)
    monkeypatch.setattr(making, "EPISODES", 8)
    env = probe(True)
    env = dataclasses.replace(env, params={"probe": PROBES["reward equals action"].vector()})
    sizes = {"num_envs": 16, "num_steps": 8, "hidden": (8,), "learning_rate": 0.01}
    how = making.Recipe(2560, replace(ppo.Config(), sizes))
    monkeypatch.setitem(making.RECIPES, env.name, how)
    return env


@pytest.fixture
def ready_cache(monkeypatch, tmp_path):
    """Use a cache with the dataset that a training run in no time has made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    steps = Dataset("medium", counted_steps().transitions, References(0.0, 1.0))
    monkeypatch.setattr(making, "make", lambda env, size, seed: {"medium": steps})
    making.load(environment(), "medium")


def test_datasets_are_made_once(small, capsys):
    sets = {name: making.load(small, name, 200) for name in making.NAMES}
    assert capsys.readouterr().err.count("Making") == 1
    references = sets["expert"].references
    assert references.random < references.expert
    mean = lambda name: sets[name].transitions.reward.mean()
    assert mean("random") < mean("medium") <= mean("expert")
    assert len(sets["mixed"]) == len(sets["medium"]) + len(sets["expert"])
    # The same seed, the same bits.
    again = making.make(small, 200)
    for name in making.KINDS:
        x, y = sets[name].transitions, again[name].transitions
        np.testing.assert_array_equal(x.observation, y.observation)
        np.testing.assert_array_equal(x.action, y.action)


@pytest.mark.parametrize("name", making.HOLES)
def test_data_with_a_hole_lack_a_region(monkeypatch, name):
    env = envs.make("pendulum")
    steps = making.record(env, random_policy(env), random.key(0), 400)
    whole = Dataset("medium-replay", steps, References(-1000.0, -100.0))
    monkeypatch.setattr(making.cache, "load", lambda *_, **__: whole)
    left = making.load(env, name)
    assert left.name == name and left.references == whole.references
    assert len(left) == pytest.approx(0.8 * len(whole), abs=2)
    values = lambda x: x.transitions.observation if name == "state-hole" else x.transitions.action
    every = np.asarray(values(whole), np.float64)
    distance = lambda x: np.square((np.asarray(x) - every.mean(0)) / every.std(0)).mean(-1)
    assert distance(values(left)).min() > np.quantile(distance(every), 0.19)
    with pytest.raises(UserError, match=r"^A hole in (action|observation)s needs one Box of real"):
        grid = envs.make("cartpole" if name == "action-hole" else "multi_room")
        making.with_hole(whole, grid, name)


def test_settings_that_no_dataset_can_be_made_with():
    for env, size, match in (
        (envs.make("gymnasium/CartPole-v1"), 9, "Minari"),
        (dataclasses.replace(environment(), max_steps=None), 9, "no time limit"),
        (environment(), 0, "size must be at least 1"),
        (environment(), 10**30, "size must be at least 1 and below"),
    ):
        with pytest.raises(UserError, match=match):
            making.make(env, size)


def test_a_name_is_the_dataset_and_a_path_the_file(ready_cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "medium").mkdir()
    assert len(making.load(environment(), "medium")) == 12
    with pytest.raises(UserError, match="holds no main_data"):
        making.load(environment(), "./medium")
    with pytest.raises(UserError, match=r"'\./large'"):
        making.load(environment(), "./large")


@pytest.mark.parametrize(
    "options,match",
    [
        (["--size", "x"], "--size is 'x'"),
        (["--size", "9" * 5000], "--size"),
        (["--seed", "1.5"], "--seed is '1.5'"),
        (["--run", "nowhere"], "'nowhere' has no summary"),
        (["--run", "odd"], "'odd' has no summary"),
        (["--write", "odd"], "cannot be written"),
    ],
)
def test_the_command_line(ready_cache, tmp_path, monkeypatch, capsys, options, match):
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(envs, "make", lambda name: environment())
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "summary.json").write_text('{"returns": [[1], null]}')
    assert command_line.call(script.main, ["counting", "medium", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and match in error


def test_scores_of_a_run(ready_cache, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(envs, "make", lambda name: environment())
    (tmp_path / "summary.json").write_text('{"returns": [0.5, 1]}')
    words = ["counting", "medium", "--run", str(tmp_path)]
    assert command_line.call(script.main, words) == 0
    assert "Scores: [50.0, 100.0]" in capsys.readouterr().out
