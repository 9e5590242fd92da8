"""The variants of GRPO: judges against NumPy, and relations between whole updates."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.algorithms.tokens.dapo import judge_long_answers
from jaxrl.algorithms.tokens.opo import judge_by_length
from jaxrl.algorithms.tokens.reinforce_plus_plus import judge_tokens
from jaxrl.algorithms.tokens.reinforce_plus_plus_baseline import judge_in_batch
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.core.train import advance, start

T, B, G = 5, 6, 3
LENGTH = np.array([2, 5, 3, 1, 4, 5])
MASK = np.arange(T)[:, None] < LENGTH


def judge_rewards(judge, reward, net=None):
    batch = SimpleNamespace(
        transitions=SimpleNamespace(reward=jnp.float32(reward)), mask=jnp.array(MASK)
    )
    return np.asarray(judge(net, batch)["advantage"])


def rewards():
    """Draw rewards of tokens, which end with the answers."""
    return np.where(MASK, np.random.default_rng(0).normal(size=(T, B)), 0)


def in_batch(x):
    """Standardize over all tokens that are decisions."""
    return np.where(MASK, (x - x[MASK].mean()) / (x[MASK].std() + 1e-8), 0)


def test_opo_compares_with_the_mean_by_length():
    reward, got = rewards(), None
    returns, expected = reward.sum(0), []
    for group in (slice(0, 3), slice(3, 6)):
        baseline = (LENGTH[group] * returns[group]).sum() / LENGTH[group].sum()
        expected.extend(returns[group] - baseline)
    got = judge_rewards(judge_by_length(G), reward)
    np.testing.assert_allclose(got, np.broadcast_to(expected, (T, B)), rtol=1e-4, atol=1e-6)


def test_reinforce_plus_plus_standardizes_rewards_to_come_over_the_batch():
    reward = rewards()
    to_come = np.array([[reward[t:, b].sum() for b in range(B)] for t in range(T)])
    got = judge_rewards(judge_tokens, reward)
    np.testing.assert_allclose(got, in_batch(to_come), rtol=1e-4, atol=1e-5)


def test_its_baseline_is_the_mean_of_the_group():
    reward = rewards()
    groups = reward.sum(0).reshape(-1, G)
    each = np.broadcast_to((groups - groups.mean(1, keepdims=True)).ravel(), (T, B))
    got = judge_rewards(judge_in_batch(G), reward)
    np.testing.assert_allclose(got, in_batch(each), rtol=1e-4, atol=1e-5)


def test_dapo_penalizes_answers_near_the_limit():
    reward = rewards()
    net = SimpleNamespace(hyper=SimpleNamespace(overlong=SimpleNamespace(margin=2.0)))
    returns = reward.sum(0)
    for limit, penalty in ((0, 0 * returns), (5, [0, -1, 0, 0, -0.5, -1])):
        groups = (returns + penalty).reshape(-1, G)
        each = (groups - groups.mean(1, keepdims=True)) / groups.std(1, keepdims=True)
        got = judge_rewards(judge_long_answers(G, limit), reward, net)
        np.testing.assert_allclose(got, np.broadcast_to(each.ravel(), (T, B)), rtol=1e-3)


@functools.cache
def step(name):
    """Return how one on-policy gradient step of descent moves the parameters."""
    build, Config = registry.builder(name)
    settings = {"recurrent": 8, "transformer": 1, "prompts": 4, "answers": 4, "epochs": 1}
    settings |= {"optimizer.name": "sgd", "optimizer.learning_rate": 1.0, "max_grad_norm": 1e9}
    settings |= {"weight_decay": 0.0} | ({"informative": 0.0} if name == "dapo" else {})
    algorithm = build(envs.make("judged_words"), replace(Config(), settings))
    run = jax.jit(lambda key: start(algorithm, key))(random.key(0))
    after, _ = jax.jit(lambda run: advance(algorithm, run))(run)
    params = lambda run: jax.tree.leaves(run.state.agent.parts["actor_critic"].params)
    pairs = zip(params(after), params(run), strict=True)
    return np.concatenate([np.ravel(new - old) for new, old in pairs])


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [("grpo", "sapo", "gspo", "gspo_token", "gmpo"), ("bnpo", "cispo", "dapo")],
    ids=("mean over answers", "mean over tokens"),
)
def test_on_policy_bounds_of_the_ratio_change_nothing(names):
    """The gradient of all is that of the policy; they differ in what they average over."""
    first, *others = map(step, names)
    assert np.abs(first).max() > 1e-3
    for name, other in zip(names[1:], others, strict=True):
        # SAPO's gate has the slope 1 at a ratio of 1, whatever its temperature.
        np.testing.assert_allclose(other, first, rtol=1e-3, atol=1e-6, err_msg=name)
    assert np.abs(step("grpo") - step("bnpo")).max() > 1e-3


@pytest.mark.slow
def test_on_policy_dr_grpo_is_rloo_but_for_a_factor():
    """A group's mean is 3/4 as far away as the mean of the other three; both sum tokens."""
    expected = step("rloo") * 3 / 4
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(step("dr_grpo"), expected, rtol=1e-3, atol=1e-6)
