"""Strings as a density: the expert draws from it, rewards count pairs, the law is enumerated."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import check_environment, make
from jaxrl.envs.bandits import strings as module


@pytest.fixture(scope="module")
def env():
    return make("strings", length=3, letters=3)


def test_it_keeps_the_rules_of_environments(env):
    check_environment(env)


def test_the_density_is_a_markov_chain_that_sums_to_one(env):
    strings = module.every_string(env)
    assert len(np.unique(strings, axis=0)) == len(strings) == 27
    log_p = np.asarray(module.log_density(jnp.asarray(strings), env.params))
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-5)
    table = np.exp(env.params.scores) / np.exp(env.params.scores).sum(1, keepdims=True)
    for string, found in zip(strings, log_p, strict=True):
        expected = np.prod([table[a, b] for a, b in itertools.pairwise(string)]) / 3
        assert np.exp(found) == pytest.approx(expected, rel=1e-5)


def test_the_expert_draws_from_the_density(env):
    keys = jax.random.split(jax.random.key(0), 20_000)
    state, _ = jax.vmap(env.reset, (0, None))(keys, env.params)
    drawn = np.asarray(jax.vmap(env.expert, (0, None))(state, env.params))
    share = np.bincount(drawn @ [9, 3, 1], minlength=27) / len(drawn)
    law = np.exp(np.asarray(env.log_density(jnp.asarray(module.every_string(env)), env.params)))
    assert np.abs(share - law).max() < 0.01


def test_rewards_count_pairs_and_are_known_of_probable_letters(env):
    state, _ = env.reset(jax.random.key(0), env.params)
    for string in ([0, 1, 2], [2, 0, 0], [1, 1, 1]):
        pairs = [(a + 1) % 3 == b for a, b in itertools.pairwise(string)]
        _, timestep = env.step(jax.random.key(0), state, jnp.asarray(string), env.params)
        assert float(timestep.reward) == pytest.approx(np.mean(pairs))
    letters = np.random.default_rng(0).dirichlet(np.ones(3), 3).astype(np.float32)
    expected = 0.0
    for string in itertools.product(range(3), repeat=3):
        chance = np.prod([letters[i, a] for i, a in enumerate(string)])
        expected += chance * np.mean([(a + 1) % 3 == b for a, b in itertools.pairwise(string)])
    found = module.relaxed_reward(jnp.asarray(letters), env.params)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_tilted_law_is_the_density_times_the_exponential_reward(env):
    law, reward = module.tilted_probabilities(env, 0.5)
    strings = module.every_string(env)
    weight = np.exp(np.asarray(module.log_density(jnp.asarray(strings), env.params)))
    paid = [np.mean([(a + 1) % 3 == b for a, b in itertools.pairwise(s)]) for s in strings]
    np.testing.assert_allclose(reward, paid, rtol=1e-6)
    weight = weight * np.exp(2 * np.array(paid))
    np.testing.assert_allclose(law, weight / weight.sum(), rtol=1e-4)
