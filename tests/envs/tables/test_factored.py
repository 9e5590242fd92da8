"""Factored environments: steps against their joint tensors, and SysAdmin's numbers."""

import functools

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.envs.tables import factored_mdp

SAMPLES = 400
ENVIRONMENTS = {
    "factored_mdp": {"num_factors": 3, "num_values": 3, "num_parents": 2, "num_actions": 2},
    "sysadmin": {"num_machines": 4},
}


@functools.cache
def sample_steps(name: str) -> tuple:
    """Sample successors and rewards [SAMPLES, S * A] of every joint state and action."""
    env = envs.make(name, **ENVIRONMENTS[name])
    factors, actions, _, values = env.params.conditional.shape
    states = np.indices((values,) * factors).reshape(factors, -1).T.astype(np.int32)
    s, a = (x.ravel() for x in np.indices((len(states), actions)))
    example, _ = jax.eval_shape(env.reset, jax.random.key(0), env.params)

    def one(key, factors, action):
        state = type(example)(factored_mdp.State(factors), np.int32(0))
        state, timestep = env.step(key, state, action, env.params)
        return state.inner.factors, timestep.reward, timestep.observation

    keys = jax.random.split(jax.random.key(0), (SAMPLES, len(s)))
    play = jax.jit(jax.vmap(jax.vmap(one), (0, None, None)))
    after, reward, observation = (np.asarray(x) for x in play(keys, states[s], a))
    one_hot = (after[..., None] == np.arange(values)).reshape(observation.shape)
    np.testing.assert_array_equal(observation, one_hot)
    powers = values ** np.arange(factors)[::-1]
    return env, len(states), (after * powers).sum(-1), reward


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_steps_are_drawn_from_the_joint_tensors(name):
    env, states, after, reward = sample_steps(name)
    tensors = factored_mdp.tensors(env.params)
    actions = env.action_space.n
    pair = np.arange(states * actions)
    counts = np.bincount((pair * states + after).ravel(), minlength=states * actions * states)
    frequency = counts.reshape(tensors.transition.shape) / SAMPLES
    expected = tensors.transition
    np.testing.assert_allclose(expected.sum(-1), 1.0)
    assert not np.any(frequency[expected == 0])
    deviation = np.sqrt(expected * (1 - expected) / SAMPLES)
    assert np.all(np.abs(frequency - expected) < 5.5 * deviation + 0.5 / SAMPLES)
    np.testing.assert_allclose(reward, np.tile(tensors.reward.ravel(), (SAMPLES, 1)), rtol=1e-5)
    np.testing.assert_allclose(tensors.initial.sum(), 1.0)


def test_a_random_environment_has_the_documented_parents_and_tables():
    params = envs.make("factored_mdp", num_factors=6, num_values=3, num_parents=3, seed=1).params
    np.testing.assert_array_equal(params.parents[:, 0], np.arange(6))  # itself first
    assert all(len(set(x)) == 3 for x in params.parents) and params.parents.max() < 6
    assert len({tuple(np.sort(x - x[0])) for x in params.parents}) > 2  # the others are random
    assert params.conditional.shape == (6, 4, 27, 3)
    np.testing.assert_allclose(params.conditional.sum(-1), 1.0)
    # Uniform on the simplex of three: variance 2 / (9 x 4).
    np.testing.assert_allclose(params.conditional.var((0, 1, 2)), 1 / 18, rtol=0.15)
    assert params.reward.min() >= 0 and 0.12 < params.reward.max() <= 1 / 6


def test_a_ring_of_machines_fails_and_recovers_as_in_sysadmin():
    env = envs.make("sysadmin", **ENVIRONMENTS["sysadmin"])
    tensors = factored_mdp.tensors(env.params)
    n = 4
    bits = (np.arange(2**n)[:, None] >> np.arange(n)[::-1]) & 1  # the first machine highest
    for s, a, t in np.ndindex(2**n, n + 1, 2**n):
        probability = 1.0
        for machine in range(n):
            runs, before = bits[s, machine], bits[s, machine - 1]
            up = 0.5 + 0.5 * (1 + before) / 2 if runs else 0.1
            up = 1.0 if a == machine + 1 else up
            probability *= up if bits[t, machine] else 1 - up
        np.testing.assert_allclose(tensors.transition[s, a, t], probability, atol=1e-12)
    expected = bits.sum(-1)[:, None] - 0.75 * (np.arange(n + 1) > 0)
    np.testing.assert_allclose(tensors.reward, expected)
    np.testing.assert_array_equal(tensors.initial, np.arange(2**n) == 2**n - 1)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_expert_is_optimal_for_the_joint_environment(name):
    env = envs.make(name, **ENVIRONMENTS[name])
    tensors = factored_mdp.tensors(env.params)
    rows = np.arange(len(tensors.reward))
    chosen = tensors.transition[rows, env.params.optimal]
    gained = tensors.reward[rows, env.params.optimal]
    values = np.linalg.solve(np.eye(len(rows)) - factored_mdp.DISCOUNT * chosen, gained)
    q = tensors.reward + factored_mdp.DISCOUNT * tensors.transition @ values
    assert np.all(q.max(-1) <= values + 1e-8)
    # The expert numbers joint states as the tensors do.
    factors, values_each = env.params.reward.shape
    states = np.indices((values_each,) * factors).reshape(factors, -1).T
    example, _ = jax.eval_shape(env.reset, jax.random.key(0), env.params)
    state = type(example)(factored_mdp.State(states.astype(np.int32)), np.zeros(len(states)))
    actions = jax.jit(jax.vmap(env.expert, (0, None)))(state, env.params)
    np.testing.assert_array_equal(actions, env.params.optimal)
    assert len(np.unique(env.params.optimal)) > 1


def test_an_environment_too_large_to_solve_has_no_expert():
    assert envs.make("sysadmin", num_machines=20).expert is None
