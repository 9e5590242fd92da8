"""SLIM: a critic for each reward, and how their advantages meet in the policy's update."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import slim
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.wrappers.registry import wrap
from tests.algorithms.imitation.test_gail import start_agent
from tests.kit.stub import stub, transitions

SETTINGS = {k: v for k, v in slim.TINY.items() if k not in ("env", "wrappers")}
RNG = np.random.default_rng(5)


def test_advantages_are_standardized_by_critic_then_weighted_and_added():
    advantage = RNG.normal(2.0, [0.1, 1.0, 30.0], (6, 4, 3)).astype(np.float32)
    weight = np.float32([1.0, 0.5, 2.0])
    expected = sum(
        w * (a - a.mean()) / a.std()
        for w, a in zip(weight, np.moveaxis(advantage, -1, 0), strict=True)
    )
    combined = slim.combine_advantages(jnp.asarray(advantage), jnp.asarray(weight))
    np.testing.assert_allclose(combined, expected, rtol=1e-3, atol=1e-4)
    # In other units and from another zero a reward has the same influence.
    scaled = slim.combine_advantages(jnp.asarray(advantage * [100, 1, 1] + [0, 5, 0]), weight)
    np.testing.assert_allclose(scaled, combined, rtol=1e-3, atol=1e-4)


def test_each_critic_estimates_the_advantages_of_its_own_reward():
    steps, copies, kinds = 5, 3, 3
    reward = RNG.normal(size=(steps, copies, kinds)).astype(np.float32)
    table = RNG.normal(size=(kinds, 2 * steps * copies)).astype(np.float32)
    number = np.arange(2 * steps * copies).reshape(2, steps, copies)
    ended, no = RNG.random((steps, copies)) < 0.3, np.zeros((steps, copies), bool)
    cut = ~ended & (RNG.random((steps, copies)) < 0.3)
    before = TimeStep(number[0], np.zeros_like(ended, np.float32), no, no, no)
    after = TimeStep(number[1], np.zeros_like(ended, np.float32), ended, cut, no)
    x = Transition(before, no, after, (), {"log_prob": reward[..., 0]})
    net = stub(
        hyper={"discount": 0.9, "gae_lambda": 0.8},
        critics=lambda timestep: jnp.asarray(table)[:, timestep.observation],
    )
    sample = slim.advantages_by_critic(net, Batch(x, jnp.float32(0)), jnp.asarray(reward))
    for k in range(kinds):
        value, later = table[k][number[0]], table[k][number[1]]
        expected, following = np.zeros((steps, copies)), np.zeros(copies)
        for t in reversed(range(steps)):
            delta = reward[t, :, k] + 0.9 * later[t] * ~ended[t] - value[t]
            following = delta + 0.72 * np.where(ended[t] | cut[t], 0, following)
            expected[t] = following
        np.testing.assert_allclose(sample.advantage[..., k], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(sample.target[..., k], expected + value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cost", [None, np.float32([0, 1, 0, 1, 1, 0])])
def test_rewards_are_for_discovery_task_and_safety(cost):
    x, table = transitions(6), RNG.normal(size=(12, 2)).astype(np.float32)
    skill = np.array([0, 1, 1, 0, 0, 1])
    before = dataclasses.replace(x.timestep, goal=np.eye(2)[skill])
    after = dataclasses.replace(x.next_timestep, cost=cost)
    x = dataclasses.replace(x, timestep=before, next_timestep=after)
    weights = {"discovery_weight": 1.0, "task_weight": 2.0, "safety_weight": 3.0}
    net = stub(
        hyper=weights,
        discriminator=lambda timestep: jnp.asarray(table)[timestep.observation][..., None],
    )
    reward, weight = slim.rewards_of(net, x)
    told = jax.nn.log_softmax(table[6:])[np.arange(6), skill] + np.log(2)
    expected = [told, x.reward] + ([] if cost is None else [-cost])
    np.testing.assert_allclose(reward, np.stack(expected, -1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(weight, [1.0, 2.0, 3.0][: len(expected)])


@pytest.mark.parametrize(("critics", "number"), [("each", 3), ("one", 1)])
def test_the_number_of_critics_is_that_of_the_rewards_or_one(critics, number):
    env = wrap(envs.make("push_play"), slim.TINY["wrappers"])
    agent, state, batch = start_agent(slim.slim, env, SETTINGS | {"critics": critics})
    params = state.agent.parts["critics"].params
    assert {x.shape[0] for x in jax.tree.leaves(params)} == {number}
    new, _ = jax.jit(agent.update)(state, batch, random.key(3))
    after = new.agent.parts["critics"].params
    for k in range(number):  # all of them learn
        moved = jax.tree.map(lambda a, b, k=k: jnp.abs(a[k] - b[k]).max() > 0, params, after)
        assert any(jax.tree.leaves(moved))


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="put it into the wrapper 'skills'"):
        slim.slim(envs.make("push_play"), SETTINGS)
    with pytest.raises(UserError, match="minibatches"):
        slim.slim(
            wrap(envs.make("push_play"), slim.TINY["wrappers"]),
            SETTINGS | {"passes.minibatches": 5},
        )
