"""Imagination: which reward belongs to which step, and what an imagined end means."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.planning.shared import imagination as i
from jaxrl.core import random
from jaxrl.core.spaces import Box
from jaxrl.networks.imagination import Actor, symexp_atoms

H, N, GAMMA, TRACE = 6, 4, 0.9, 0.8


def expected_returns(reward, value, continue_prob):
    returns, follows = np.zeros((H, N)), value[-1]
    for t in reversed(range(H)):
        mixed = (1 - TRACE) * value[t] + TRACE * follows
        follows = returns[t] = reward[t] + GAMMA * continue_prob[t] * mixed
    return returns


def test_returns_are_read_off_where_steps_led_and_stop_at_imagined_ends():
    rng = np.random.default_rng(0)
    # Reward, logit of going on, and value of each place: as features, which "networks" code.
    features = rng.uniform(-1, 1, size=(H + 1, N, 3)).astype(np.float32)
    features[3, 0, 1] = -np.inf  # the third step of the first dream ends it
    atoms = symexp_atoms(5, 1.0)
    code = lambda x: jnp.log(losses.two_hot(x, atoms) + 1e-12)

    @jax.jit
    def judge_features(features):
        outcome = lambda x: (code(x[..., 0]), x[..., 1])
        action = jnp.zeros((H, N), jnp.int32)
        value = lambda x: code(x[..., 2])
        return i.judge(features, action, outcome, value, atoms, GAMMA, TRACE)

    dreams = judge_features(features)
    continue_prob = 1 / (1 + np.exp(-features[1:, :, 1]))
    np.testing.assert_allclose(dreams.continue_prob, continue_prob, rtol=1e-5)
    returns = expected_returns(features[1:, :, 0], features[1:, :, 2], continue_prob)
    np.testing.assert_allclose(dreams.returns, returns, rtol=1e-4, atol=1e-5)
    # What is imagined after the end changes nothing before it.
    features[4:, :, 0], features[3:, :, 2] = 1.0, 1.0
    later = judge_features(features).returns
    np.testing.assert_array_equal(later[:3, 0], dreams.returns[:3, 0])
    assert (later[:3, 1] != dreams.returns[:3, 1]).all()


def test_a_step_weighs_what_is_likely_to_be_reached():
    continues = np.random.default_rng(1).uniform(size=(H, N)).astype(np.float32)
    continues[2, 0] = 0.0
    weight, alive = i.survival_weights(jnp.asarray(continues)), np.ones((H, N))
    for t in range(1, H):
        alive[t] = alive[t - 1] * continues[t - 1]
    np.testing.assert_allclose(weight, alive, rtol=1e-5)
    assert (weight[3:, 0] == 0).all() and (weight[:3, 0] > 0).all()


def test_a_policy_over_a_box_stays_near_it():
    """The mean is within the bounds, the deviation between 0.1 and 1 half-widths."""
    actor, features = (
        Actor(Box(-1.0, 3.0, (2,)), (8,)),
        10 * jax.random.normal(random.key(0), (64, 5)),
    )
    params = jax.tree.map(lambda x: 1e3 * x, actor.init(random.key(1), features))
    policy = actor.apply(params, features)
    mean, deviation = np.asarray(policy.mode()), np.asarray(policy.stddev())
    assert mean.min() >= -1 and mean.max() <= 3 and mean.max() - mean.min() > 3.9
    assert deviation.min() >= 0.2 and deviation.max() <= 2 and deviation.max() > 9 * deviation.min()


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
