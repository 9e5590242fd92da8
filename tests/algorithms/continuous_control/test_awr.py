"""AWR's returns, its draws and its two losses, against plain recursions and NumPy."""

import dataclasses

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control.awr import Sample, awr, draw, excess, judge, value_loss
from jaxrl.core import random
from jaxrl.core.spaces import Box
from jaxrl.core.types import Batch
from tests.kit.stub import losses_of, stub, transitions

L, B, GAMMA, LAMBDA = 7, 6, 0.9, 0.7
N = L * B
TABLE = np.random.default_rng(1).normal(size=2 * N).astype(np.float32)
MASK = np.arange(L)[:, None] >= np.full(B, 2)
BOX = Box(jnp.float32([-1, 0]), jnp.float32([3, 1]), (2,))
MEAN = np.float32([[0.0, 0.5], [4.0, 0.5], [-2.5, 1.5]])  # the last two are outside


def net_of(**hyper):
    hyper = {"discount": GAMMA, "td_lambda": LAMBDA} | hyper
    return stub(critic=lambda timestep: jnp.asarray(TABLE)[timestep.observation], hyper=hyper)


def history():
    x = jax.tree.map(lambda leaf: leaf.reshape(L, B, *leaf.shape[1:]), transitions(N, 0))
    return Batch(x, jnp.float32(0), mask=jnp.asarray(MASK))


def test_returns_and_advantages_are_a_plain_recursion():
    batch = history()
    x, found = batch.transitions, judge(net_of(), batch)
    value, after = TABLE[x.observation] / (1 - GAMMA), TABLE[x.next_observation] / (1 - GAMMA)
    returned = np.zeros((L, B))
    for t in reversed(range(L)):
        for b in range(B):
            follows = after[t, b]  # after a cut by the clock, and after the newest step
            if x.terminated[t, b]:
                follows = 0.0
            elif not x.truncated[t, b] and t < L - 1:
                follows = (1 - LAMBDA) * after[t, b] + LAMBDA * returned[t + 1, b]
            returned[t, b] = x.reward[t, b] + GAMMA * follows
    np.testing.assert_allclose(found.returns, returned, rtol=1e-4, atol=1e-4)
    advantage = returned - value
    held = advantage[MASK]
    expected = (advantage - held.mean()) / (held.std() + 1e-5)
    np.testing.assert_allclose(found.advantage, expected, rtol=1e-4, atol=1e-4)
    assert x.truncated.any() and x.terminated.any()


@pytest.mark.parametrize("shards", [1, 2])
def test_draws_are_uniform_over_what_is_held(shards):
    number = 6000
    batch = history()
    found = draw(judge(net_of(), batch), batch.mask, random.key(0), number, shards)
    counts = np.bincount(found.timestep.observation, minlength=N).reshape(L, B)
    assert (counts[~MASK] == 0).all()
    expected = number / MASK.sum()
    assert ((counts[MASK] - expected) ** 2 / expected).sum() < 2.5 * MASK.sum()  # chi-squared
    streams = found.timestep.observation.reshape(shards, -1) % B // (B // shards)
    np.testing.assert_array_equal(streams, np.arange(shards)[:, None] + 0 * streams)


def sample(n=3):
    x = transitions(n, 0)
    action = np.random.default_rng(2).uniform(0, 1, (n, 2)).astype(np.float32)
    advantage = np.float32([-1.0, 0.5, 9.0])
    return Sample(x.timestep, action, 10 * np.float32([1, -2, 3]), advantage)


def test_the_value_is_learned_in_units_of_a_mean_reward():
    x = sample()
    expected = (TABLE[:3] - (1 - GAMMA) * x.returns) ** 2 / 2
    np.testing.assert_allclose(value_loss(net_of(), x), expected, rtol=1e-5)


def test_the_policy_imitates_by_weight_and_stays_within_bounds():
    deviation, x = np.float32([0.4, 0.1]), sample()
    policy = lambda timestep: distrax.Independent(
        distrax.Normal(jnp.asarray(MEAN), jnp.broadcast_to(deviation, MEAN.shape)), 1
    )
    net = stub(actor=policy, hyper={"temperature": 2.0, "max_weight": 20.0, "bound_weight": 10.0})
    environment = dataclasses.replace(envs.make("pendulum"), action_space=BOX)
    output = losses_of(awr.recipe(environment, awr.Config()))["policy_loss"](net, x)
    loss = output.value
    z = (x.action - MEAN) / deviation
    log_prob = (-(z**2) / 2 - np.log(deviation) - np.log(2 * np.pi) / 2).sum(-1)
    weight = np.minimum(np.exp(x.advantage / 2), 20)
    assert weight[-1] == 20
    outside = np.float32([0, (3 / 2 - 1) ** 2 / 2, (3.5 / 2 - 1) ** 2 / 2 + (2 - 1) ** 2 / 2])
    np.testing.assert_allclose(loss, -weight * log_prob + 10 * outside, rtol=1e-4)
    assert excess(distrax.Categorical(jnp.zeros(3)), envs.make("cartpole").action_space) == 0


def test_its_deviation_is_fixed():
    """No parameter, and so many half-widths."""
    part = awr.recipe(envs.make("pendulum"), awr.Config(deviation=0.3)).parts["actor"]
    params = part.init(random.key(0))
    assert not any("std" in jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(params))
    policy = part.apply(params, part.inputs[0])
    np.testing.assert_allclose(policy.distribution.scale, 0.3 * 2, rtol=1e-6)
