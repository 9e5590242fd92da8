"""Estimates of general utilities, against sums over all trajectories of a small MDP."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.policy_gradient import general_utilities as gu
from jaxrl.envs.tables import mdp, random_mdp
from jaxrl.exact import occupancy, policy_gradient

STATES, ACTIONS, STEPS, GAMMA = 3, 2, 3, 0.05  # beyond STEPS lies 1.25e-4 of the sum


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def all_trajectories(transition, initial, logits):
    """Return all trajectories as one batch [T, N], and the probability of each."""
    policy = np.asarray(jax.nn.softmax(logits))
    s = np.array([*itertools.product(range(STATES), repeat=STEPS)]).T
    a = np.array([*itertools.product(range(ACTIONS), repeat=STEPS)]).T
    n, m = s.shape[1], a.shape[1]
    s, a = np.repeat(s, m, 1), np.tile(a, n)
    chance = initial[s[0]] * policy[s, a].prod(0) * transition[s[:-1], a[:-1], s[1:]].prod(0)
    timestep = types.SimpleNamespace(observation=jnp.eye(STATES)[s])
    return types.SimpleNamespace(timestep=timestep, action=jnp.asarray(a)), chance


def test_occupancy_and_gradient_are_unbiased_also_with_importance_weights():
    found = mdp.tensors(random_mdp.garnet(STATES, ACTIONS, STATES, seed=0))
    transition, initial = (np.asarray(x, float) for x in (found.transition, found.initial))
    rng = np.random.default_rng(0)
    logits, acted, reward = rng.normal(size=(3, STATES, ACTIONS))
    right = (1 - GAMMA) * occupancy.occupancy(transition, jax.nn.softmax(logits), initial, GAMMA)
    slope = (1 - GAMMA) * policy_gradient.policy_gradient(
        logits, transition, reward, initial, GAMMA
    )
    for behavior in (logits, acted):
        x, chance = all_trajectories(transition, initial, behavior)
        share = chance * gu.ratios(logits, behavior, x)
        each = gu.occupancies(x, share, GAMMA, ACTIONS)
        np.testing.assert_allclose(each.sum(0), right, atol=3e-4)
        share = share * len(chance)  # since estimates are means
        found = gu.gradient(logits, x, share, reward, GAMMA)
        np.testing.assert_allclose(found, slope, atol=5e-4)


def test_steps_beyond_the_end_of_an_episode_do_not_count():
    observation = jnp.eye(STATES)[np.array([[0], [1], [2]])]
    x = types.SimpleNamespace(
        timestep=types.SimpleNamespace(observation=observation), action=jnp.array([[0], [1], [0]])
    )
    found = gu.occupancies(x, jnp.array([[1.0], [1], [0]]), 0.5, ACTIONS)[0]
    expected = np.zeros((STATES, ACTIONS))
    expected[0, 0], expected[1, 1] = 0.5, 0.25
    np.testing.assert_allclose(found, expected)
