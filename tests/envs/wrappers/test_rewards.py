"""Components of rewards, costs and budgets."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.envs.wrappers import cost, reward_components, time_limit
from tests.envs.wrappers import environments
from tests.envs.wrappers.environments import timesteps_of

ACTIONS = np.asarray([1, 0, 2, 1], np.int32)
PARTS = {
    "speed": lambda t, a, n: n.observation[0] - t.observation[0],
    "effort": lambda t, a, n: -(a**2),
    "paid": lambda t, a, n: n.reward,
}
MOVED, EFFORT, PAID = [0, 1, 0, 2, 1], [0, -1, 0, -4, -1], [0, 1, 1, 3, 4]


def test_components_are_reported_beside_existing_ones():
    env = reward_components(environments.walk(observe="vector"), PARTS)
    got = timesteps_of(env, ACTIONS)
    expected = {"place": PAID, "speed": MOVED, "effort": EFFORT, "paid": PAID}
    assert set(got.reward_components) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(got.reward_components[name], values)
        assert got.reward_components[name].dtype == np.float32
    np.testing.assert_array_equal(got.reward, PAID)
    assert env.expert is not None and env.params is environments.walk(observe="vector").params


def test_the_reward_is_the_weighted_sum_with_weights_in_the_params():
    walk = environments.walk(observe="vector")
    env = reward_components(walk, PARTS, {"paid": 0.5, "speed": 2.0, "effort": 1.0})
    np.testing.assert_array_equal(env.params.reward_weights, [2.0, 1.0, 0.5])
    parts = np.asarray([MOVED, EFFORT, PAID])
    for weights in ([2.0, 1.0, 0.5], [0.0, -1.0, 3.0]):
        got = timesteps_of(env, ACTIONS, reward_weights=np.float32(weights))
        np.testing.assert_allclose(got.reward, weights @ parts)
        np.testing.assert_array_equal(got.true_reward, 2 * np.asarray(MOVED))  # the walk's own
    assert env.expert is None and env.goals is None


def test_the_replaced_reward_is_the_true_one():
    env = reward_components(environments.arm(), {"one": lambda t, a, n: 1.0}, {"one": 1.0})
    got = timesteps_of(env, jnp.full((2, 2), 0.5))
    np.testing.assert_array_equal(got.reward, [0, 1, 1])
    np.testing.assert_array_equal(got.true_reward, [0, 1.0, 1.0])
    got = timesteps_of(env, jnp.full((2, 2), 0.25))
    np.testing.assert_array_equal(got.true_reward, [0, 0.5, 0.5])


def test_costs_belong_to_the_step_and_end_nothing():
    env = cost(environments.walk(observe="vector"), lambda t, a, n: t.observation[0] * a)
    got = timesteps_of(env, ACTIONS)
    np.testing.assert_array_equal(got.cost, [0, 0, 0, 2, 3])
    np.testing.assert_array_equal(got.metrics["episode_cost"], [0, 0, 0, 2, 5])
    assert not got.done.any()
    np.testing.assert_array_equal(got.reward, PAID)


def test_the_step_that_exceeds_the_budget_terminates():
    env = cost(time_limit(environments.walk(observe="vector"), 4), budget=2.5)
    for budget, ends in ((2.5, [0, 0, 0, 1, 1]), (3.0, [0, 0, 0, 0, 1]), (9.0, [0, 0, 0, 0, 0])):
        got = timesteps_of(env, ACTIONS, cost_budget=budget)
        np.testing.assert_array_equal(got.cost, MOVED)
        np.testing.assert_array_equal(got.terminated, ends)
        # A truncation stays one unless the budget ended the step too.
        assert got.truncated[4] == (not ends[4])


def test_each_of_several_costs_has_its_budget():
    function = lambda t, a, n: jnp.stack([a, 2 * (a == 0)])
    env = cost(environments.walk(observe="vector"), function, budget=(3.0, 1.0))
    got = timesteps_of(env, ACTIONS)
    np.testing.assert_array_equal(got.cost, [[0, 0], [1, 0], [0, 2], [2, 0], [1, 0]])
    np.testing.assert_array_equal(got.terminated, [0, 0, 1, 1, 1])
    assert "episode_cost" not in got.metrics
    got = timesteps_of(env, ACTIONS, cost_budget=np.float32([2.0, 5.0]))
    np.testing.assert_array_equal(got.terminated, [0, 0, 0, 1, 1])


def test_a_budget_drops_what_knows_of_none():
    maze, function = envs.make("point_maze"), lambda t, a, n: n.reward
    assert cost(maze, function).goals is not None and cost(maze, function).expert is not None
    limited = cost(maze, function, budget=1.0)
    assert limited.goals is None and limited.expert is None
