"""IQL: its losses against NumPy, what each of its steps sees, and its fixed point in a bandit."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.offline import iql
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.counting import counting
from tests.kit.stub import stub, transitions

N = 64
RNG = np.random.default_rng(2)
VALUE = RNG.normal(size=2 * N).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
HYPER = {"discount": 0.9, "reward_scale": 2.0, "expectile": 0.8, "temperature": 0.5}


def net(**more):
    return stub(
        value=lambda s: VALUE[s.observation],
        critic=lambda s, a: CRITICS[s.observation] + np.asarray(a)[..., None],
        target={"critic": lambda s, a: COPIES[s.observation] + np.asarray(a)[..., None]},
        hyper=HYPER,
        **more,
    )


def test_the_value_is_an_expectile():
    x = transitions(N)
    output = iql.value_loss(net(), x)
    loss = output.value
    gap = (COPIES[:N] + x.action[:, None]).min(-1) - VALUE[:N]
    np.testing.assert_allclose(loss, np.where(gap > 0, 0.8, 0.2) * gap**2, rtol=1e-4)


def test_the_critics_regress_on_the_next_value():
    x = transitions(N)
    target = 2 * x.reward + 0.9 * ~x.terminated * VALUE[N:]
    q = CRITICS[:N] + x.action[:, None]
    expected = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(iql.critic_loss(net(), x), expected, rtol=1e-4)


def test_the_actor_imitates_by_advantage():
    x = transitions(N)
    log_prob = RNG.normal(size=N).astype(np.float32)
    policy = types.SimpleNamespace(log_prob=lambda action: log_prob)
    output = iql.actor_loss(net(actor=lambda s: policy), x)
    loss, report = output.value, output.metrics
    advantage = (COPIES[:N] + x.action[:, None]).min(-1) - VALUE[:N]
    expected = -np.minimum(np.exp(advantage / 0.5), iql.LARGEST_WEIGHT) * log_prob
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(report["advantage"], advantage, rtol=1e-5)


# ------------------------------------------------------------------------------- whole updates

ENV = counting()
CONFIG = replace(iql.Config(), {"hidden": (16,)})
RATES = {"critic.learning_rate": 0.01, "actor.learning_rate": 0.01}
AGENT = iql.iql.agent(ENV, CONFIG)
init, update = jax.jit(AGENT.init), jax.jit(AGENT.update)


def batch_of(observation, terminated):
    """Three actions of rewards 0, 1 and 2."""
    no, ended = jnp.zeros(3, bool), jnp.asarray(terminated)
    before = TimeStep(jnp.float32(observation), jnp.zeros(3), no, no, no)
    after = TimeStep(before.observation + 0.5, jnp.arange(3.0), ended, ~ended, no)
    return Batch(Transition(before, jnp.arange(3), after, (), {}), jnp.float32(0))


def part(name, params):
    return functools.partial(iql.recipe(ENV, Static(CONFIG)).parts[name].apply, params)


@pytest.mark.slow
def test_what_each_step_sees():
    """The critics regress on the new value; the policy is weighed by the copies from before and the
    new value; then the copies follow."""
    batch = batch_of(np.linspace(-1, 1, 9).reshape(3, 3), [True, False, False])
    old = init(random.key(0), AGENT.hyper | HYPER | RATES | {"target.rate": 0.25})
    critic = old.parts["critic"]  # whose copy is another, so that it matters which of them is read
    critic = dataclasses.replace(critic, target=jax.tree.map(lambda x: 1.3 * x, critic.target))
    old = dataclasses.replace(old, parts=old.parts | {"critic": critic})
    new, info = update(old, batch, random.key(1))
    seen = stub(
        value=part("value", new.parts["value"].params),
        critic=part("critic", critic.params),
        actor=part("actor", old.parts["actor"].params),
        target={"critic": part("critic", critic.target)},
        hyper=HYPER,
    )
    x = batch.transitions
    for name, values in (
        ("critic_loss", iql.critic_loss(seen, x)),
        ("actor_loss", iql.actor_loss(seen, x).value),
    ):
        np.testing.assert_allclose(info.metrics[name], values.mean(), rtol=1e-4)
    jax.tree.map(
        lambda copy, was, now: np.testing.assert_allclose(copy, 0.75 * was + 0.25 * now, atol=1e-6),
        *(new.parts["critic"].target, critic.target, new.parts["critic"].params),
    )


@pytest.mark.slow
def test_fixed_point_in_a_bandit():
    """Equally frequent actions: V is the expectile of their rewards, and the policy is
    proportional to exp(reward / temperature)."""
    batch = batch_of(np.full((3, 3), 0.3), [True, True, True])
    hyper = {"temperature": 1.0, "expectile": 0.7, "target.rate": 0.1}
    state = init(random.key(0), AGENT.hyper | RATES | hyper)
    key = random.key(1)
    for _ in range(1500):
        state, _ = update(state, batch, key)
    x = jax.tree.map(lambda leaf: leaf[:1], batch.transitions.timestep)
    # 0.7 (2 - v) + s (1 - v) = 0.3 v with v > 1: s = 0.3.
    value = part("value", state.parts["value"].params)(x)
    np.testing.assert_allclose(value, (0.7 * 2 + 0.3) / 1.3, atol=0.02)
    weights = np.exp([0.0, 1.0, 2.0])
    policy = part("actor", state.parts["actor"].params)(x)
    np.testing.assert_allclose(policy.probs[0], weights / weights.sum(), atol=0.02)
