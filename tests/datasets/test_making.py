"""Datasets that are made: of a training run, once, and the same from the same seed."""

import dataclasses

import numpy as np
import pytest

from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core.settings import replace
from jaxrl.datasets import cache, making
from tests.learning.probes import PROBES, probe


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A cache of its own, and an environment that PPO learns at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(making, "PARTS", 4)
    monkeypatch.setattr(making, "EPISODES", 8)
    env = probe(True)
    env = dataclasses.replace(env, params={"probe": PROBES["reward equals action"].vector()})
    sizes = {"num_envs": 16, "num_steps": 8, "hidden": (8,), "learning_rate": 0.01}
    how = making.Recipe(2560, replace(ppo.Config(), sizes))
    monkeypatch.setitem(making.RECIPES, env.name, how)
    return env


def test_data_sets_are_made_once(small, capsys):
    sets = {name: cache.load(small, name, 200) for name in cache.NAMES}
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
