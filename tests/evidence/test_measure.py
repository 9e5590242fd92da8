"""Trials: what side is run with which settings, how much it spends, and how it is tuned."""

import dataclasses
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.evidence import measure, tuning
from experiments.evidence.declare import Arena, Side, Trial
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.algorithms.value.dqn import TINY, dqn
from jaxrl.core import random
from jaxrl.core.errors import UserError
from tests.evidence import stubs

KEYS = jax.random.split(random.key(0), 3)
TINY_DQN = {k: v for k, v in TINY.items() if k != "env"}
TINY_PPO = {"num_envs": 8, "num_steps": 4, "epochs": 1, "minibatches": 1, "hidden": (8,)}


# ------------------------------------------------------------------------------- settings


def test_a_sides_settings_stand_over_its_environments_and_tried_values_over_both():
    side = Side(stubs.STUB, {"width": 3, "height": 2.0})
    told = stubs.trial(side, settings={"width": 2, "optimizer.rate": 0.5, "unheard_of": 1})
    config = measure.configure(told, {"rate": 7.0})
    assert config == stubs.Config(stubs.Optimizer(7.0), height=2.0, width=3)
    assert measure.configure(told).optimizer.rate == 0.5


@pytest.mark.parametrize(
    ("side", "environment", "said"),
    [
        ({"hiden": (3,)}, {}, "did you mean 'torso.hidden'"),
        ({"discount": 1.5}, {}, "discount is 1.5; it must be between 0 and 1"),
        ({}, {"hiden": (3,)}, "Unknown setting of any side in cartpole 'hiden'"),
    ],
)
def test_what_cannot_be_set_is_said_before_anything_is_spent(side, environment, said):
    where = Arena("cartpole", 16 + 8, 0.0, 500.0, settings=environment, points=1)
    told = Trial("dqn", Side(dqn, TINY_DQN | side), where, where.env_steps)
    with pytest.raises(UserError, match=said):
        measure.check([told])


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"discount": (0.9, 1.1)}, "discount is 1.1"),
        ({"num_envs": (1.0, 2.0)}, "num_envs"),
        ({"learning_rat": (1e-3,)}, "did you mean 'optimizer.learning_rate'"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_is_spent(grid, said):
    where = Arena("cartpole", 16 + 8, 0.0, 500.0, points=1)
    told = Trial("dqn", Side(dqn, TINY_DQN, grid), where, where.env_steps)
    with pytest.raises(UserError, match=said):
        measure.check([told])


# ------------------------------------------------------------------------------- budgets


def test_sides_that_cannot_spend_the_same_are_refused():
    def check(env_steps, tiny=False):
        where = Arena("cartpole", env_steps, 0.0, 500.0, points=2)
        sides = {"dqn": Side(dqn, TINY_DQN), "ppo": Side(ppo, TINY_PPO)}  # 8 and 32 at once
        measure.check(Trial(n, side, where, env_steps, tiny) for n, side in sides.items())

    check(16 + 2 * 24)
    with pytest.raises(UserError, match=r"cartpole, 80 .* in 2 parts .* the 32 that 'ppo' takes"):
        check(16 + 2 * 32)
    with pytest.raises(UserError, match=r"136 .* less 16 at the start.* the 8 that 'dqn' takes"):
        check(136, tiny=True)


def test_steps_are_spent_to_the_last_one():
    algorithm = SimpleNamespace(env_steps=8, initial_env_steps=16)
    steps = lambda total: measure.schedule(
        Trial("a", Side(dqn), Arena("w", total, 0.0, 1.0, points=2), total), algorithm
    )
    assert steps(16 + 2 * 3 * 8) == (2, 3)
    for total in (16 + 2 * 3 * 8 + 1, 16 + 8, 16):
        with pytest.raises(UserError, match="no multiple of the 8"):
            steps(total)
    algorithm.env_steps = 0
    with pytest.raises(UserError, match="takes no environment steps"):
        steps(64)


def test_gradient_steps_count_passes_and_updates():
    where = Arena("cartpole", 64, 0.0, 500.0)
    passes = Side(ppo, TINY_PPO | {"epochs": 3, "minibatches": 2})
    assert measure.gradient_steps(Trial("ppo", passes, where, 64)) == 6
    assert measure.gradient_steps(Trial("dqn", Side(dqn, {"updates": 5}), where, 64)) == 5


def test_a_real_curve():
    where = Arena("cartpole", 16 + 2 * 5 * 8, 0.0, 500.0, points=2, episodes=3)
    told = Trial("dqn", Side(dqn, TINY_DQN | {"num_shards": 1}), where, where.env_steps)
    keys = KEYS[np.array([0, 0, 1, 2])]
    rates = np.float32([1e-2, 0, 1e-2, 1e-2])
    found = measure.run(measure.curve, told, keys, {"learning_rate": rates})
    assert set(found) == {"score", "final", "untrained", "env_steps", "gradient_steps"}
    assert all(np.isfinite(x).all() and len(x) == 4 for x in found.values())
    assert found["env_steps"] == [where.env_steps] * 4
    assert found["gradient_steps"] == [20] * 4
    assert min(found["untrained"]) >= 8  # steps that a pole stands at least
    assert found["untrained"][0] == found["untrained"][1]  # by the key, before any learning
    assert found["final"][0] != found["final"][1]
    assert len(set(found["untrained"][1:])) > 1
    # Run i depends on key i alone, wherever it stands.
    order = np.array([3, 2, 0, 1])
    again = measure.run(measure.curve, told, keys[order], {"learning_rate": rates[order]})
    assert again == {name: [x[i] for i in order] for name, x in found.items()}


def test_a_tiny_curve_takes_one_step_and_can_be_traced():
    where = Arena("cartpole", 10**6 + 1, 0.0, 500.0)
    told = Trial("ppo", Side(ppo, TINY_PPO), where, where.env_steps, tiny=True)
    found = jax.eval_shape(lambda keys: measure.curve(told, keys, {}), KEYS)
    assert {x.shape for x in found.values()} == {(3,)}
    full = dataclasses.replace(told, tiny=False)
    with pytest.raises(UserError, match="no multiple of the 32"):
        jax.eval_shape(lambda keys: measure.curve(full, keys, {}), KEYS)


# ------------------------------------------------------------------------------- many runs


@pytest.fixture
def counting():
    """A measuring function that counts its runs at once, and may run out of memory."""
    sizes = []

    def run(trial, keys, hyper):
        sizes.append(len(keys))
        if len(keys) > run.most:
            raise jax.errors.JaxRuntimeError(run.error)
        return {"score": stubs.of_key(keys) + hyper["rate"]}

    run.most, run.sizes, run.error = 100, sizes, "RESOURCE_EXHAUSTED: Out of memory"
    return run


def test_runs_share_programs_of_one_size(counting, monkeypatch):
    keys = jax.random.split(random.key(0), 9)
    rates = np.arange(9.0)
    whole = measure.run(counting, stubs.trial(), keys, {"rate": rates})
    np.testing.assert_allclose(whole["score"], stubs.of_key(keys) + rates, rtol=1e-6)
    monkeypatch.setattr(measure, "AT_ONCE", 5)
    assert measure.run(counting, stubs.trial(), keys, {"rate": rates}) == whole
    assert counting.sizes == [9, 5, 5]
    monkeypatch.setattr(measure, "AT_ONCE", 64)
    counting.most = 3
    assert measure.run(counting, stubs.trial(), keys, {"rate": rates}) == whole
    assert counting.sizes[3:] == [9, 5, 3, 3, 3]
    counting.error = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        measure.run(counting, stubs.trial(), keys, {"rate": rates})
    counting.error, counting.most = "RESOURCE_EXHAUSTED", 0
    with pytest.raises(jax.errors.JaxRuntimeError):
        measure.run(counting, stubs.trial(), keys, {"rate": rates})


def test_a_metric_is_a_number_for_each_run():
    run = lambda trial, keys, hyper: {"score": np.zeros((len(keys), 2))}
    with pytest.raises(UserError, match=r"'score' of 'one' in stub is \[3, 2\]; .* 3 runs"):
        measure.run(run, stubs.trial(), KEYS, {})


# ------------------------------------------------------------------------------- tuning


def tune_side(best_rate, grid=None, **more):
    side = Side(
        stubs.STUB, {"best_rate": best_rate}, {"rate": stubs.RATES} if grid is None else grid
    )
    return tuning.tune(stubs.measure, stubs.trial(side), KEYS, "score", **more)


def test_the_best_inside_of_a_grid():
    found = tune_side(0.1)
    assert found["best"] == {"rate": 0.1}
    assert found["grid"] == {"rate": list(stubs.RATES)}
    assert found["edges"] == []
    assert np.shape(found["scores"]) == (3, 3)
    # All points have the same seeds, and `at_best` has the values of the best one.
    noise = 0.1 * stubs.of_key(KEYS)
    np.testing.assert_allclose(found["at_best"]["score"], noise, atol=1e-7)
    np.testing.assert_allclose(found["scores"][0], noise - 1, atol=1e-6)


def test_an_edge_is_widened_once():
    found = tune_side(8.0)
    assert found["best"] == {"rate": 10.0}
    assert found["grid"] == {"rate": [0.01, 0.1, 1.0, 10.0]}
    (look,) = found["edges"]
    assert (
        not look["ok"] and "is best at 10, at an end of 0.01, 0.1, 1, 10, although" in look["said"]
    )
    found = tune_side(3.0)  # from 1 as far as from 10: 3 is nearer to 10 on no scale
    (look,) = found["edges"]
    assert found["best"] == {"rate": 1.0} and look["ok"]
    assert "is best at 1, of 0.01, 0.1, 1, 10" in look["said"]
    found = tune_side(1e-4)
    assert found["best"] == {"rate": 0.001} and not found["edges"][0]["ok"]


def test_an_edge_that_cannot_be_widened_is_said():
    found = tune_side(40.0, {"rate": (1.0, 9.0)})
    assert found["grid"] == {"rate": [1.0, 9.0]} and found["best"] == {"rate": 9.0}
    (look,) = found["edges"]
    assert not look["ok"]
    assert "at an end of 1, 9: optimizer.rate is 81.0; it must be between 0 and 50" in look["said"]


def test_several_hyper_parameters_are_one_product_and_widen_from_the_best():
    def run(trial, keys, hyper):
        return {"score": -((hyper["a"] - 4) ** 2) - (hyper["b"] - 2) ** 2 + 0 * stubs.of_key(keys)}

    side = Side(stubs.STUB, {}, {"a": (1.0, 2.0), "b": (3.0, 2.0, 1.0)})
    found = tuning.tune(run, stubs.trial(side), KEYS[:2], "score")
    assert found["best"] == {"a": 4.0, "b": 2.0}
    assert len(found["points"]) == 6 + 1
    assert found["grid"] == {"a": [1.0, 2.0, 4.0], "b": [1.0, 2.0, 3.0]}


def test_a_side_without_a_grid_has_one_point():
    found = tune_side(0.1, {})
    assert (found["best"], found["grid"], found["points"]) == ({}, {}, [{}])
    assert len(found["at_best"]["score"]) == 3


def test_less_may_be_better():
    assert tune_side(0.1, more_is_better=False)["best"] == {"rate": 0.001}


def test_tiny_trials_are_not_widened():
    side = Side(stubs.STUB, {"best_rate": 8.0}, {"rate": stubs.RATES})
    found = tuning.tune(stubs.measure, stubs.trial(side, tiny=True), KEYS, "score")
    assert found["grid"] == {"rate": list(stubs.RATES)}


def test_what_is_not_finite_is_never_best():
    def run(trial, keys, hyper):
        return {"score": np.where(hyper["rate"] < run.from_, stubs.of_key(keys), np.nan)}

    side = Side(stubs.STUB, {}, {"rate": stubs.RATES})
    run.from_ = 0.5
    assert tuning.tune(run, stubs.trial(side), KEYS, "score")["best"]["rate"] < 0.5
    run.from_ = -math.inf
    with pytest.raises(
        UserError, match="No setting of 'one' in stub gives a 'score' that is finite"
    ):
        tuning.tune(run, stubs.trial(side), KEYS, "score")


def test_what_is_tuned_by_must_be_measured():
    with pytest.raises(UserError, match="Unknown metric of 'one' 'scores'; did you mean 'score'"):
        tuning.tune(stubs.measure, stubs.trial(), KEYS, "scores")
