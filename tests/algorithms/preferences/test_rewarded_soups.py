"""Rewarded soups: whose rewards who learns, and the parameters and the worth of their mean."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.preferences.rewarded_soups import (
    Sample,
    loss_of,
    policies,
    rewarded_soups,
    soup,
)
from jaxrl.algorithms.preferences.shared.measures import all_answers, log_probs
from jaxrl.algorithms.preferences.shared.ratings import ratings_of, rewards_of
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import TimeStep
from jaxrl.exact.answers import optimal_answers
from jaxrl.kit import Minibatch
from jaxrl.networks.heads import Categorical
from tests.kit.stub import stub

ENV = envs.make("ruled_words", letters=2, length=2, seed=6)
SIZES = {"recurrent": 16, "transformer": 0, "learning_rate": 5e-3}
SMALL = SIZES | {"prompts": 4, "answers": 4}
NAMES = ("taste_0", "taste_1")


def test_a_soup_is_the_weighted_mean_of_parameters():
    trees = [{"a": jnp.array([1.0, 2.0]), "b": jnp.float32(x)} for x in (1.0, 5.0, 9.0)]
    two = soup(tuple(trees[:2]), 0.25)
    np.testing.assert_allclose(two["b"], 0.25 * 1 + 0.75 * 5)
    np.testing.assert_allclose(two["a"], [1, 2])
    np.testing.assert_allclose(soup(tuple(trees), 0.5)["b"], 0.5 * 1 + 0.25 * 5 + 0.25 * 9)
    np.testing.assert_allclose(soup(tuple(trees[:2]), 0.0)["b"], 5)


def test_policies_begin_alike_and_the_soup_follows_them():
    assert rewards_of(ENV) == NAMES
    algorithm = rewarded_soups(ENV, SMALL | {"share": 0.25})
    run = start(algorithm, random.key(0))
    leaves = lambda run, name: jax.tree.leaves(run.state.agent.parts[name].params)
    for part in policies(NAMES):
        assert all(map(np.array_equal, leaves(run, part), leaves(run, "actor_critic")))
    begun = leaves(run, "actor_critic")
    for _ in range(2):
        run, _ = advance(algorithm, run)
    first, second = (leaves(run, part) for part in policies(NAMES))
    assert any((x != y).any() for x, y in zip(first, second, strict=True))
    for mixed, x, y in zip(leaves(run, "actor_critic"), first, second, strict=True):
        np.testing.assert_allclose(mixed, 0.25 * x + 0.75 * y, rtol=1e-5, atol=1e-7)
    target = jax.tree.leaves(run.state.agent.parts["actor_critic"].target)
    assert all(map(np.array_equal, target, begun))  # the reference stays


def test_policies_learn_what_they_sample_from():
    """The temperature is 2, and one token cannot be sampled."""
    rng = np.random.default_rng(0)
    logits, action = rng.normal(size=(3, 4, 5)).astype(np.float32), rng.integers(0, 3, (3, 4))
    advantage, mask = rng.normal(size=(1, 4)).astype(np.float32), rng.random((3, 4)) < 0.7
    allowed = np.broadcast_to(np.arange(5) < 4, logits.shape)
    no = np.zeros((3, 4), bool)
    net = stub(
        hyper={"sampling.temperature": 2.0, "entropy_weight": 0.5},
        policy_taste=lambda timestep, memory, method: (Categorical(jnp.asarray(logits)), None, ()),
        network=lambda name: types.SimpleNamespace(initial=lambda n: ()),
    )
    sample = Sample(TimeStep(action, no, no, no, no), jnp.asarray(action), advantage, allowed)
    output = loss_of("policy_taste")(net, Minibatch(sample, jnp.asarray(mask)))
    p = np.exp(logits[..., :4] / 2) / np.exp(logits[..., :4] / 2).sum(-1, keepdims=True)
    log_prob = np.log(np.take_along_axis(p, action[..., None], -1)[..., 0])
    entropy = -(p * np.log(p)).sum(-1)
    expected = (-(advantage * log_prob + 0.5 * entropy) * mask).sum(0)
    np.testing.assert_allclose(output.value, expected, rtol=1e-5)


def test_sizes_and_environments_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="rewarded_soups needs several rewards"):
        rewarded_soups(envs.make("judged_words"), SMALL)
    with pytest.raises(UserError, match=r"groups\.answers is 2; it must be a multiple of 2"):
        rewarded_soups(ENV, SMALL | {"answers": 2})
    with pytest.raises(UserError, match=r"passes\.early_stop is True; rewarded_soups always takes"):
        rewarded_soups(ENV, SMALL | {"passes.early_stop": True})


@pytest.mark.slow
def test_each_policy_ends_at_the_optimum_of_its_reward_and_soups_lie_above_the_line():
    """The line between the two policies' expected rewards; the soup's are at every share."""
    beta = 0.3
    config = SIZES | {"prompts": 64, "answers": 16, "kl.weight": beta, "recurrent": 32}
    algorithm = rewarded_soups(ENV, config | {"learning_rate_steps": 250 * 64 * 16 * 3.0})
    begun = start(algorithm, random.key(0))
    after, _ = train(algorithm, begun, 250)
    found, ratings = all_answers(ENV), ratings_of(ENV)
    now = lambda params: log_probs(ENV, algorithm.config, params)
    parts = after.state.agent.parts
    reference = now(parts["actor_critic"].target)
    members = tuple(parts[part].params for part in policies(NAMES))
    for name, params in zip(NAMES, members, strict=True):
        best = optimal_answers(ratings[name], reference, beta)
        kl = losses.categorical_kl(now(params), best).mean()
        assert losses.categorical_kl(reference, best).mean() > 0.3
        assert kl < 0.05, (name, kl)
    worth = lambda params: np.array(
        [(np.exp(now(params)) * ratings[name]).sum(-1).mean() for name in NAMES]
    )
    ends = [worth(params) for params in members]
    for share in (0.25, 0.5, 0.75):
        line = share * ends[0] + (1 - share) * ends[1]
        mixed = worth(soup(members, share))
        assert (mixed > line - 0.01).all() and mixed.mean() > line.mean() + 0.01, (share, mixed)
    measured = jax.jit(algorithm.measure)(after.state, random.key(0))
    assert set(measured) <= set(algorithm.scores)
    middle = worth(parts["actor_critic"].params)
    np.testing.assert_allclose([measured[f"exact_{x}"] for x in NAMES], middle, rtol=1e-3)
    gain = middle.mean() - np.mean(ends)
    np.testing.assert_allclose(measured["exact_gain"], gain, atol=1e-3)
    assert found.reward.shape == ratings["taste_0"].shape
