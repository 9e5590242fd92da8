"""SAC for discrete actions: its losses against NumPy, with and without illegal actions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control import discrete_sac
from jaxrl.core import random
from jaxrl.core.settings import Static
from tests.kit.stub import losses_of, stub, transitions

N, A = 32, 2
RNG = np.random.default_rng(4)
LOGITS = RNG.normal(size=(2 * N, A)).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2, 2 * N, A)).astype(np.float32)
TEMPERATURE = 0.3
RECIPE = discrete_sac.recipe(envs.make("cartpole"), Static(discrete_sac.Config()))


@pytest.fixture(params=[False, True], ids=["all_legal", "some_illegal"])
def tables(request):
    """A net, transitions, and the policy's probabilities [2 N, A] by NumPy."""
    legal = np.ones((2 * N, A), bool)
    x = transitions(N, A)
    if request.param:
        legal[::3, 0] = False
        seen = lambda step: dataclasses.replace(
            step, legal_actions=jnp.asarray(legal)[step.observation]
        )
        x = dataclasses.replace(x, timestep=seen(x.timestep), next_timestep=seen(x.next_timestep))
    odds = np.where(legal, np.exp(LOGITS.astype(np.float64)), 0.0)
    column = lambda table: lambda s: jnp.asarray(table)[:, s.observation, :, None]
    net = stub(
        actor=lambda s: jnp.asarray(LOGITS)[s.observation, :, None],
        critic=column(CRITICS),
        temperature=lambda: jnp.float32(TEMPERATURE),
        target={"critic": column(COPIES)},
        hyper={"discount": 0.9, "target_entropy": 0.7},
    )
    return net, x, odds / odds.sum(-1, keepdims=True), legal


def entropy(p):
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def test_critics_regress_on_the_exact_soft_value(tables):
    net, x, p, _ = tables
    output = losses_of(RECIPE)["critic_loss"](net, x)
    loss = output.value
    soft = (p * COPIES.min(0)).sum(-1) + TEMPERATURE * entropy(p)
    target = x.reward + 0.9 * ~x.terminated * soft[N:]
    q = CRITICS[:, np.arange(N), x.action]
    np.testing.assert_allclose(loss, 0.5 * ((q - target) ** 2).sum(0), rtol=1e-4)


def test_the_policys_loss_is_an_expectation(tables):
    net, x, p, _ = tables
    output = losses_of(RECIPE)["actor_loss"](net, x)
    loss, report, aside = output.value, output.metrics, output.aux
    expected = -(p * CRITICS.min(0)).sum(-1) - TEMPERATURE * entropy(p)
    np.testing.assert_allclose(loss, expected[:N], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report["entropy"], entropy(p)[:N], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(aside, report["entropy"])


def test_the_temperature_holds_a_share_of_what_legal_actions_can_have(tables):
    net, x, p, legal = tables
    net.aux = {losses_of(RECIPE)["actor_loss"]: jnp.float32(entropy(p)[:N])}
    output = losses_of(RECIPE)["temperature_loss"](net, x)
    loss = output.value
    most = np.log(legal.sum(-1))[:N]
    expected = TEMPERATURE * (entropy(p)[:N] - 0.7 * most)
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)


def test_it_acts_by_its_policy(tables):
    net, x, p, legal = tables
    act = lambda key, greedy: RECIPE.act(net, x.timestep, (), key, greedy)[0]
    best = np.where(legal, LOGITS, -np.inf)[:N].argmax(-1)
    np.testing.assert_array_equal(act(None, True), best)
    keys = jax.random.split(random.key(0), 2000)
    drawn = jax.vmap(lambda key: act(key, False))(keys)
    np.testing.assert_allclose(np.mean(drawn, 0), p[:N, 1], atol=0.05)
    assert legal[:N][np.arange(N), np.asarray(drawn)].all()
