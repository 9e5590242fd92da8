"""Tests of the return of the true rewards, beside that of a shaped reward."""

import functools
import json

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.core import metrics as m
from jaxrl.envs.wrappers import action_repeat, reward_components
from jaxrl.runtime import log
from jaxrl.runtime.training import train
from tests.counting import counting
from tests.runtime import tiny

SIZES = {"num_envs": 4, "num_steps": 8, "minibatches": 1, "hidden": (4,)}


def negative_reward(timestep, action, next_timestep):
    return -next_timestep.reward


@functools.cache
def environment(name="cartpole"):
    env = counting() if name == "counting" else jaxrl.make(name)
    return reward_components(env, {"shaped": negative_reward}, {"shaped": 0.5})


def row_of(env):
    algorithm = jaxrl.algorithms.ppo(env, SIZES)
    run, row = jaxrl.train(algorithm, jaxrl.start(algorithm, jaxrl.key(0)), 4)
    return algorithm, run, m.values(row)


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: action_repeat(env, 2)])
def test_training_and_evaluation_show_both(wrap):
    env = wrap(environment("counting"))
    algorithm, run, row = row_of(env)
    assert row["true_return"] >= 60
    np.testing.assert_allclose(row["episode_return"], -0.5 * row["true_return"], rtol=1e-6)
    episodes = jaxrl.evaluate(env, algorithm.policy(run.state), jaxrl.key(0), 8, True, 10)
    np.testing.assert_allclose(episodes.returns, -0.5 * episodes.metrics["true_return"])
    assert episodes.finished.all() and (episodes.metrics["true_return"] > 0).all()


def test_without_a_true_reward_nothing_is_added():
    algorithm, run, row = row_of(counting())
    assert "true_return" not in row
    episodes = jaxrl.evaluate(counting(), algorithm.policy(run.state), jaxrl.key(0), 2, True, 10)
    assert "true_return" not in episodes.metrics
    assert not [x for x in jax.tree.leaves(run.state.source) if x is None]


def test_the_log_and_the_progress_line_show_it(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shaped_rewards.py").write_text(
        "from jaxrl.core.types import Environment\n"
        "from tests.core.test_true_return import environment\n"
        "def env() -> Environment:\n    return environment()\n"
    )
    settings = {"env": "shaped_rewards:env", "name": "shaped", "quiet": False, "trust": True}
    train(tiny.config(out=str(tmp_path), **settings))
    rows = log.read(tmp_path / "shaped" / "metrics.jsonl")
    for kind, name in (("train", "episode_return"), ("evaluation", "return")):
        last = [row["metrics"] for row in rows if row["kind"] == kind][-1]
        np.testing.assert_allclose(last[name], -0.5 * np.asarray(last["true_return"]), rtol=1e-5)
    assert "true return" in capsys.readouterr().err
    assert json.loads((tmp_path / "shaped" / "summary.json").read_text())["finished"]


def test_a_true_return_is_the_second_score():
    names = log.score_names("train", ["episode_return", "true_return", "success"], {"success": "s"})
    assert names == {"return": "episode_return", "true return": "true_return", "s": "success"}
    assert list(names) == ["return", "true return", "s"]
