"""Imagination: which reward belongs to which step, and what an imagined end means."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.agents.planning import imagination as i
from jaxrl.core import random
from jaxrl.networks.imagination import symexp_atoms

H, N, GAMMA, TRACE = 6, 4, 0.9, 0.8


def expected(reward, value, continue_prob):
    returns, follows = np.zeros((H, N)), value[-1]
    for t in reversed(range(H)):
        mixed = (1 - TRACE) * value[t] + TRACE * follows
        follows = returns[t] = reward[t] + GAMMA * continue_prob[t] * mixed
    return returns


def test_returns_are_the_recursion_and_stop_at_imagined_ends():
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, H, N)).astype(np.float32)
    continue_prob = rng.uniform(size=(H, N)).astype(np.float32)
    continue_prob[2, 0] = 0.0
    discount = jnp.asarray(GAMMA * continue_prob)
    returns, weight = (
        i.dream_returns(*map(jnp.asarray, (reward, value)), discount, TRACE),
        i.until(discount),
    )
    np.testing.assert_allclose(
        returns, expected(reward, value, continue_prob), rtol=1e-5, atol=1e-6
    )
    alive = np.ones((H, N))
    for t in range(1, H):
        alive[t] = alive[t - 1] * GAMMA * continue_prob[t - 1]
    np.testing.assert_allclose(weight, alive, rtol=1e-5)
    # What is imagined after the end changes nothing before it, and counts for nothing.
    more = jnp.asarray(reward).at[3:].add(100.0), jnp.asarray(value).at[2:].add(100.0)
    later = i.dream_returns(*more, discount, TRACE)
    np.testing.assert_array_equal(later[:3, 0], returns[:3, 0])
    assert (later[:3, 1] != returns[:3, 1]).all()
    assert (weight[3:, 0] == 0).all() and (weight[:3, 0] > 0).all()


def test_what_counts_for_a_step_is_read_off_where_it_led():
    rng = np.random.default_rng(1)
    features = rng.uniform(-1, 1, size=(H + 1, N, 3)).astype(np.float32)
    atoms = symexp_atoms(5, 1.0)
    code = lambda x: jnp.log(losses.two_hot(x, atoms) + 1e-12)
    dreams = i.judge(
        jnp.asarray(features),
        jnp.zeros((H, N), jnp.int32),
        lambda x: (code(x[..., 0]), x[..., 1]),
        lambda x: code(x[..., 2]),
        atoms,
        GAMMA,
        TRACE,
    )
    continue_prob = 1 / (1 + np.exp(-features[1:, :, 1]))
    np.testing.assert_allclose(dreams.continue_prob, continue_prob, rtol=1e-5)
    returns = expected(features[1:, :, 0], features[1:, :, 2], continue_prob)
    np.testing.assert_allclose(dreams.returns, returns, rtol=1e-4, atol=1e-5)


def test_imagining_acts_where_it_is_and_goes_where_that_leads():
    class Chosen:
        def __init__(self, features):
            self.features = features

        def sample(self, seed):
            return self.features[:, 0].astype(jnp.int32) % 3

    def dynamics(state, action, key):
        after = 2 * state + action
        return after[:, None].astype(jnp.float32), after

    start = jnp.arange(N)
    features, action = jax.jit(
        lambda key: i.imagine(Chosen, dynamics, (start[:, None] * 1.0, start), key, H)
    )(random.key(0))
    place = np.arange(N)
    for t in range(H):
        np.testing.assert_array_equal(features[t, :, 0], place)
        np.testing.assert_array_equal(action[t], place % 3)
        place = 2 * place + place % 3
    np.testing.assert_array_equal(features[H, :, 0], place)
