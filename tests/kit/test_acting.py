"""Tests of acting: noise that drifts, and random actions before the first update."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.settings import Static
from jaxrl.core.spaces import Box
from jaxrl.core.types import TimeStep
from jaxrl.kit import acting
from jaxrl.kit.groups import Sampling
from jaxrl.networks.heads import Categorical
from tests.kit.stub import stub

SPACE = Box(-2.0, 2.0, (1,))
NO = jnp.zeros(3, bool)
NOISE = Static(types.SimpleNamespace(), "noise.")


def observations(first):
    return TimeStep(jnp.zeros(3), jnp.zeros(3), NO, NO, jnp.asarray(first))


def net(**more):
    hyper = {"noise.reversion": 0.15, "noise.deviation": 0.2}
    return stub(actor=lambda s: jnp.float32([[0.5], [1.9], [-0.5]]), hyper=hyper, **more)


def test_noise_drifts_within_an_episode_and_begins_at_zero_in_the_next():
    act, key = acting.add_drifting_noise("actor", SPACE, 2.0, NOISE), random.key(0)
    memory, said = jnp.float32([[0.3], [0.4], [-0.2]]), np.float32([[0.5], [1.9], [-0.5]])
    action, after, _ = act(net(), observations([True, False, False]), memory, key, False)
    drawn = 0.2 * np.asarray(jax.random.normal(key, (3, 1)))
    expected = 0.85 * np.float32([[0.0], [0.4], [-0.2]]) + drawn
    np.testing.assert_allclose(after, expected, rtol=1e-5)
    np.testing.assert_allclose(action, np.clip(said + 2 * expected, -2, 2), rtol=1e-5)
    action, after, _ = act(net(), observations([False] * 3), memory, key, True)
    np.testing.assert_array_equal(action, said)
    np.testing.assert_array_equal(after, memory)


def test_actions_are_random_until_the_first_update():
    def instruct(net, timestep, memory, key, greedy):
        return net.actor(timestep), memory, {}

    act, key = acting.random_at_first(instruct, SPACE), random.key(1)
    of = lambda updates, greedy, key=key: np.asarray(
        act(net(updates=jnp.int32(updates)), observations(NO), (), key, greedy)[0]
    )
    said = of(1, False)
    np.testing.assert_array_equal(said, np.float32([[0.5], [1.9], [-0.5]]))
    np.testing.assert_array_equal(of(0, True), said)
    drawn = np.concatenate([of(0, False, random.key(i)) for i in range(40)])
    assert abs(drawn.mean()) < 0.5 and abs(drawn.std() - 4 / np.sqrt(12)) < 0.2


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.6), (0.7, 0.3)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_policy_is_tempered_cut_and_masked(temperature, top_p, masked):
    """Against a loop over the sorted probabilities."""
    logits = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    mask = np.ones((4, 6), bool)
    if masked:
        mask[:, [0, 3]] = False
    got = acting.temper(Categorical(jax.nn.log_softmax(logits)), temperature, top_p,
                        jnp.asarray(mask) if masked else None)  # fmt: skip
    p = softmax(np.where(mask, logits / temperature, -1e9))
    for row, q in zip(p, np.exp(got.logits), strict=True):
        total, kept = 0.0, np.zeros(6, bool)
        for a in np.argsort(-row):
            if total >= top_p - 1e-6:
                break
            total, kept[a] = total + row[a], True
        expected = np.where(kept, row, 0)
        np.testing.assert_allclose(q, expected / expected.sum(), rtol=1e-4, atol=1e-6)


def test_tempered_samples_say_their_own_log_probability():
    sampling = Static(Sampling(nucleus=True), "sampling.")
    logits = jax.nn.log_softmax(jnp.float32([[0.0, 1.0, 2.0]] * 3))
    known = stub(hyper={"sampling.temperature": 0.5, "sampling.top_p": 0.8})
    allowed = jnp.asarray([[True, True, False]] * 3)
    by = lambda net, timestep, memory: (Categorical(logits), allowed, memory)
    act = acting.sample_tempered(by, sampling)
    action, _, extras = act(known, observations([False] * 3), (), random.key(0), True)
    assert action.tolist() == [1, 1, 1]  # the best of those that are allowed
    # The likelier of the two has a probability of 0.88 at this temperature: it is the nucleus.
    assert softmax(np.array([0.0, 2.0]))[1] > 0.8
    np.testing.assert_allclose(extras["log_prob"], 0, atol=1e-5)
    assert extras["allowed"].tolist() == [[False, True, False]] * 3


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
def test_illegal_actions_stay_illegal_at_any_temperature(temperature):
    logits = jnp.float32([[0.0, 1.0, 0.5, -1e9]])
    got = acting.temper(Categorical(logits), temperature)
    expected = [0, 1, 0, 0] if temperature < 1 else [1 / 3, 1 / 3, 1 / 3, 0]
    np.testing.assert_allclose(np.exp(got.logits)[0], expected, atol=1e-6)
    assert np.isfinite(got.entropy()).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_mixture_acts_by_the_other_as_often_as_it_says(share):
    n = 2000
    many = TimeStep(jnp.zeros(n), jnp.zeros(n), *[jnp.zeros(n, bool)] * 3)
    constant = lambda number: lambda net, timestep, memory, key, greedy: (
        jnp.full(n, number), memory + number, {"log_prob": jnp.full(n, -1.0 * number)}
    )  # fmt: skip
    act = acting.mix(constant(1), constant(2), lambda net: share)
    action, memory, extras = act(None, many, jnp.zeros(n), random.key(3), False)
    assert abs((np.asarray(action) == 2).mean() - share) < 0.04
    np.testing.assert_array_equal(memory, action)  # each keeps what goes with its action
    np.testing.assert_array_equal(extras["log_prob"], -action)
    assert (act(None, many, jnp.zeros(n), random.key(3), True)[0] == 1).all()
