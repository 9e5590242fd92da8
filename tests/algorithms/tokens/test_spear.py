"""SPEAR: the loss of trajectories against loops, its schedules, and the reward of calls."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.shared.answers import Sample
from jaxrl.algorithms.tokens.spear import (
    falling,
    imitation_loss,
    shaped_returns,
    spear,
    trajectory_loss,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit import Minibatch
from tests.kit.stub import stub

T, B = 6, 5
HYPER = {"clip": 0.2, "clip_high": 0.28, "entropy_weight": 0.0, "clipped_share": 0.0}
HYPER |= {"covariance_low": 0.0, "covariance_high": 40.0, "imitation": 0.5}
HYPER |= {"imitation_updates": 100.0, "call_reward": 0.3, "call_updates": 200.0}


def example(**hyper):
    rng = np.random.default_rng(0)
    now, old, advantage, entropy = rng.normal(-1, 0.4, (4, T, B)).astype(np.float32)
    policy = type("Policy", (), {"log_prob": lambda self, a: now, "entropy": lambda self: entropy})
    part = lambda timestep, memory, method: (policy(), now, ())
    initial = type("Network", (), {"initial": lambda self, n: ()})
    net = stub(
        actor_critic=part,
        network=lambda name: initial(),
        hyper=HYPER | hyper,
        key=lambda name: random.key(0),
        updates=jnp.int32(25),
    )
    mask = rng.random((T, B)) < 0.8
    x = Sample(TimeStep(*np.zeros((5, T, B))), advantage, *map(jnp.asarray, (old, old, advantage)))
    return net, Minibatch(x, jnp.asarray(mask)), (now, old, advantage, mask)


def surrogate(now, old, advantage):
    ratio = np.exp(now - old)
    clipped = np.clip(ratio, 0.8, 1.28)
    return -np.minimum(ratio * advantage, clipped * advantage), ratio


def test_without_a_share_one_token_alone_loses_its_gradient():
    net, minibatch, (now, old, advantage, mask) = example()
    each, ratio = surrogate(now, old, advantage)
    outside = np.where(advantage > 0, ratio > 1.28, ratio < 0.8)
    found = np.asarray(trajectory_loss(net, minibatch).value) * T
    all_tokens = (each * mask).sum(0)
    different = np.flatnonzero(~np.isclose(found, all_tokens, atol=1e-5))
    assert len(different) == 1  # `covariance_clip_mask` takes at least one
    b = different[0]
    gap = all_tokens[b] - found[b]
    left_out = np.flatnonzero(np.isclose(each[:, b], gap, atol=1e-5))
    assert len(left_out) == 1 and mask[left_out[0], b] and not outside[left_out[0], b]


def test_tokens_with_a_high_covariance_lose_their_gradient():
    net, minibatch, (now, old, advantage, mask) = example(clipped_share=1.0)
    each, ratio = surrogate(now, old, advantage)
    eligible = mask & ~np.where(advantage > 0, ratio > 1.28, ratio < 0.8)
    centered = lambda x: x - x[mask].mean()
    high = eligible & (centered(now) * centered(advantage) > 0)
    found = np.asarray(trajectory_loss(net, minibatch).value)
    np.testing.assert_allclose(found, (each * (mask & ~high)).sum(0) / T, atol=1e-5)
    assert high.any() and (eligible & ~high).any()


def test_imitation_grows_as_calls_lose_their_reward():
    values = [float(falling(jnp.float32(k), jnp.float32(200))) for k in (0, 50, 100, 200, 900)]
    np.testing.assert_allclose(values, [1, (1 + np.sqrt(0.5)) / 2, 0.5, 0, 0], atol=1e-6)
    net, minibatch, _ = example()
    whole = np.asarray(trajectory_loss(net, minibatch).value)
    share = 0.5 * (1 - (1 + np.cos(np.pi / 4)) / 2)  # after 25 of 100 updates
    np.testing.assert_allclose(imitation_loss(net, minibatch), share * whole, rtol=1e-5)


def test_calls_are_paid_for_at_first():
    net, _, _ = example()
    done = np.zeros((T, B), bool)
    done[[2, 3, 4, 5, 5], np.arange(B)] = True
    mask = np.cumsum(done, 0) - done == 0
    calls, reward = np.array([0, 1, 2, 3, 9.0]), np.random.default_rng(1).normal(size=(T, B))
    no = np.zeros((T, B), bool)
    after = TimeStep(no, jnp.asarray(reward), jnp.asarray(done), no, no)
    told = jnp.asarray(np.broadcast_to(calls, (T, B)))
    after = TimeStep(no, after.reward, after.terminated, no, no, metrics={"calls": told})
    batch = Batch(Transition(after, no, after, (), {}), jnp.float32(0), mask=jnp.asarray(mask))
    share = (1 + np.cos(np.pi * 25 / 200)) / 2
    expected = (reward * mask).sum(0) + share * np.minimum(0.3 * calls, 1)
    np.testing.assert_allclose(shaped_returns(net, batch), expected, rtol=1e-5)


def test_chunks_are_refused():
    with pytest.raises(UserError, match="spear compares all tokens of a minibatch"):
        spear(envs.make("lookup"), {"recurrent": 8, "transformer": 0, "chunk_rows": 64})


def test_an_environment_must_report_its_calls():
    with pytest.raises(UserError, match=r"spear reads TimeStep.metrics..calls.."):
        spear(envs.make("text_maze"), {"recurrent": 8, "transformer": 0})
