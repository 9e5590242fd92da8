"""TAGI-DQN's targets and actions, with tables for networks, against NumPy."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.value import tagi_dqn
from jaxrl.networks.tagi import Normal
from tests.kit.stub import mask_actions, stub, transitions

N, NOISE, DISCOUNT = 64, 0.7, 0.9
RNG = np.random.default_rng(1)
MEAN = RNG.normal(size=(2 * N, 2)).astype(np.float32)
VARIANCE = RNG.uniform(0.1, 2, (2 * N, 2)).astype(np.float32)


def net(key=0):
    rows = lambda table, s: jnp.asarray(table[s.observation])
    network = lambda s: Normal(rows(MEAN, s), rows(VARIANCE, s))
    key_of = lambda name: jax.random.key(key)
    return stub(q=network, key=key_of, hyper={"noise": NOISE, "discount": DISCOUNT})


def test_a_target_is_as_uncertain_as_the_value_that_it_bootstraps_from():
    x = mask_actions(transitions(N))
    target = tagi_dqn.q_target(net(), x)
    best = np.asarray(tagi_dqn.sample_actions(net(), x.next_timestep, jax.random.key(0)))
    assert x.next_timestep.legal_actions[np.arange(N), best].all()
    assert (best != MEAN[N:].argmax(-1)).any()  # a sample, not the mean
    follows = DISCOUNT * ~x.terminated  # a truncated step bootstraps
    mean = x.reward + follows * MEAN[N + np.arange(N), best]
    np.testing.assert_allclose(target.mean, mean, rtol=1e-5)
    variance = NOISE**2 + follows**2 * VARIANCE[N + np.arange(N), best]
    np.testing.assert_allclose(target.variance, variance, rtol=1e-5)


def test_actions_are_chosen_as_often_as_they_are_best():
    s = types.SimpleNamespace(observation=np.zeros(20_000, int), legal_actions=None)
    often = np.mean(tagi_dqn.sample_actions(net(), s, jax.random.key(3)))
    gap, spread = MEAN[0, 1] - MEAN[0, 0], np.sqrt(VARIANCE[0].sum())
    np.testing.assert_allclose(often, jax.scipy.stats.norm.cdf(gap / spread), atol=0.02)
