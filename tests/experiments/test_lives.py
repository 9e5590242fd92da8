"""Lives that claims compare: experts are reset before each task, and scores of a life."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.lifelong import _lives, lifelong_metrics
from jaxrl.algorithms.lifelong.lifelong_ppo import Life
from jaxrl.core import random
from jaxrl.core.types import Algorithm, struct
from jaxrl.evaluation import lifelong as worth


@struct
class Inner:
    agent: jax.Array


def history(returns, task):
    """Return a whole history [1, P, 2] of one run."""
    returns, task = jnp.float32([returns]), jnp.int32([task])
    return worth.History(returns, task, jnp.ones(task.shape, bool))


def counting():
    """Return a life of two tasks of two periods, in which returns count the periods."""

    def init(key, hyper):
        nothing = worth.record(worth.empty_history(5, 2), jnp.int32(0), jnp.zeros(2), worth.NONE)
        return Life(Inner(jnp.float32(0)), nothing, jnp.int32(0))

    def step(state, key):
        agent, row = state.inner.agent + 1, state.periods + 1
        told = worth.record(state.history, row, jnp.full(2, agent), state.periods // 2)
        return Life(Inner(agent), told, row), {}

    return Algorithm("counting", init, step, policy=lambda state: None)


def test_an_expert_is_reborn_before_each_task():
    keys, reborn = jax.random.split(random.key(0), 2), jnp.array([False, True])
    found = _lives._histories(counting(), 2, 2, keys, {}, reborn)
    np.testing.assert_array_equal(found.returns[:, :, 0], [[0, 1, 2, 3, 4], [0, 1, 2, 1, 2]])
    np.testing.assert_array_equal(found.task[1], [-1, 0, 0, 1, 1])


RETURNS = [[0.2, 0.4], [0.5, 0.3], [0.8, 0.2], [0.6, 0.4], [0.3, 0.6]]
TASK = [-1, 0, 0, 1, 1]


def test_scores_of_a_life():
    found = _lives.scores(history(RETURNS, TASK))
    expected = {
        "performance": (0.3 + 0.6) / 2,
        "kept": 1 - (0.8 - 0.3),  # the first task, the only one that was left
        "maintenance": ((0.6 - 0.8) + (0.3 - 0.8)) / 2,
        "final": (0.8 + 0.6) / 2,
        "untrained": 0.3,
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], [value], atol=1e-6, err_msg=name)


def test_relative_performance_is_to_the_expert_of_each_task():
    experts = [[0.2, 0.4], [0.5, 9.0], [0.8, 9.0], [9.0, 0.5], [9.0, 1.0]]
    found = lifelong_metrics._relative(history(RETURNS, TASK), history(experts, TASK))
    np.testing.assert_allclose(found, [(1.3 / 1.3 + 1.0 / 1.5) / 2], rtol=1e-6)
