"""Bandits for payments: probabilities of actions, labels that count, and what is learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games import payment_bandits as payments
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.exact import selection
from tests.kit.stub import stub


def test_worse_actions_are_rarer_and_unavailable_ones_never_taken():
    q = np.array([[0.9, 0.5, 0.2, 0.95]])
    available = np.array([[True, True, True, False]])
    net = stub(hyper={"gamma": 10.0})
    config = payments.Config()
    found = payments.choose(net, config, jnp.asarray(q), jnp.asarray(available))
    low = np.array([1 / (3 + 10 * 0.4), 1 / (3 + 10 * 0.7)])
    np.testing.assert_allclose(found[0], [1 - low.sum(), *low, 0], rtol=1e-5)
    config = replace(config, {"rule": "epsilon"})
    algorithm = payments.payment_bandits(envs.make("selective_labels"), config)
    assert algorithm.hyper["exploration.start"] == 0.1


def test_only_labels_that_arrived_are_learned_from():
    rng, no = np.random.default_rng(0), np.zeros(5, bool)
    seen = {
        "seen": rng.normal(size=(5, 1, 3)).astype(np.float32),
        "labels": np.array([1, 0, 1, 0, 1], np.float32)[:, None],
        "known": np.array([1, 1, 0, 0, 1], np.float32)[:, None],
    }
    after = TimeStep(seen, np.zeros(5, np.float32), no, no, no)
    x = Transition(after, np.zeros((5, 4), np.float32), after, (), {})
    logits = rng.normal(size=(5, 1)).astype(np.float32)

    def oracle(features):
        np.testing.assert_array_equal(features, seen["seen"])
        return jnp.asarray(logits)

    seen_masks = []
    config = Static(payments.Config())
    recipe = payments.recipe(envs.make("selective_labels"), config)
    net = stub(descend=lambda loss, batch, mask: seen_masks.append(mask))
    recipe.update(net, Batch(x, jnp.float32(0)))
    np.testing.assert_array_equal(seen_masks[0], seen["known"][:, 0] > 0)
    found = payments.oracle_loss(stub(oracle=oracle), x)
    odds = 1 / (1 + np.exp(-logits[:, 0]))
    labels = seen["labels"][:, 0]
    expected = -np.log(np.where(labels == 1, odds, 1 - odds))
    np.testing.assert_allclose(found.value, expected, rtol=1e-5)
    np.testing.assert_array_equal(found.metrics["success_rate"], labels)


@pytest.mark.slow
def test_it_learns_which_action_to_take():
    env = envs.make("selective_labels", types=6, features=0, delay=2, bias=1.0)
    config = {"num_steps": 16, "updates": 32, "warmup": 256, "learning_rate": 1e-2, "hidden": (8,)}
    algorithm = payments.payment_bandits(env, config)

    @jax.jit
    def learn(key):
        run, _ = train(algorithm, start(algorithm, key), 12)
        policy = algorithm.policy(run.state)
        seen = {"available": jnp.ones((1, 6)), "candidates": jnp.eye(6)[None]}
        no = jnp.zeros(1, bool)
        timestep = TimeStep(seen, jnp.zeros(1), no, no, no)
        return policy.act(policy.state, timestep, policy.memory(1), key, True)[0][0]

    scores = np.asarray(learn(random.key(0)))
    value = lambda x: selection.value(x, env.params, 4, 1)
    best, even = value(selection.type_rewards(env.params)), value(np.zeros(6))
    assert value(scores) > best - 0.1 * (best - even)


def test_several_choices_a_round_are_refused():
    with pytest.raises(UserError, match="the quota of 'selective_labels' is 2"):
        payments.payment_bandits(envs.make("selective_labels", quota=2))
    with pytest.raises(UserError, match="cannot act in 'cartpole'"):
        payments.payment_bandits(envs.make("cartpole"))
