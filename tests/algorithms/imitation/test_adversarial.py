"""Discriminators: their loss and its penalty against NumPy, and what they are shown."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import gail
from jaxrl.algorithms.imitation.shared import adversarial
from jaxrl.algorithms.imitation.shared.adversarial import Beside, Discriminator
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, Values
from jaxrl.core.types import Batch
from tests.kit.stub import stub, transitions

N = 16
WEIGHT = np.float32([2.0, -0.5])


def steps(seed, action=None):
    x = transitions(N, actions=0, seed=seed)
    rng = np.random.default_rng(seed)
    before, after = rng.normal(size=(2, N, 2)).astype(np.float32)
    x = dataclasses.replace(
        x,
        timestep=dataclasses.replace(x.timestep, observation=before),
        next_timestep=dataclasses.replace(x.next_timestep, observation=after),
    )
    return x if action is None else dataclasses.replace(x, action=action)


def quadratic(net, x):
    """(w s)^2 / 2 + s' + 3 a, whose gradient is (w (w s), (1, 1), 3)."""
    inner = x.timestep.observation @ WEIGHT
    return jnp.square(inner) / 2 + x.next_timestep.observation.sum(-1) + 3 * jnp.asarray(x.action)


def test_the_gradient_is_with_respect_to_observations_and_action():
    x = jax.tree.map(jnp.asarray, steps(0))
    slope = adversarial.gradient_of(quadratic, None, x)
    inner = np.asarray(x.timestep.observation) @ WEIGHT
    expected = np.concatenate([inner[:, None] * WEIGHT, np.tile([3.0, 1, 1], (N, 1))], -1)
    np.testing.assert_allclose(np.sort(slope), np.sort(expected), rtol=1e-5)


def test_indices_have_no_gradient_and_are_the_experts():
    x, y = steps(0, np.arange(N) % 2), steps(1, np.arange(N) % 3)
    share = np.float32(np.linspace(0, 1, N))
    middle = adversarial.interpolate(Beside(x, y), jnp.asarray(share))
    np.testing.assert_array_equal(middle.action, y.action)
    seen = share[:, None] * y.observation + (1 - share[:, None]) * x.observation
    np.testing.assert_allclose(middle.observation, seen, rtol=1e-6)
    np.testing.assert_allclose(middle.next_observation[-1], y.next_observation[-1])
    only = lambda net, x: (x.timestep.observation @ WEIGHT) + 0 * x.action
    slope = adversarial.gradient_of(only, None, jax.tree.map(jnp.asarray, middle))
    np.testing.assert_allclose(slope[:, :2], np.tile(WEIGHT, (N, 1)))
    assert slope.shape == (N, 4)


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("penalized", [False, True])
def test_the_loss_is_a_cross_entropy_and_a_penalty(penalized, one_sided):
    linear = lambda net, x: x.timestep.observation @ WEIGHT + 0.1 * jnp.asarray(x.action)
    settings = Static(Discriminator(penalized=penalized, one_sided=one_sided))
    loss = adversarial.discriminator_loss(("d",), linear, settings)
    hyper = {"discriminator": Values({"slope": 3.0, "penalty_weight": 5.0})}
    x, y = steps(0), steps(1)
    net = stub(key=lambda name: random.key(0), hyper=hyper)
    output = loss(net, jax.tree.map(jnp.asarray, Beside(x, y)))
    mine, theirs = (t.observation @ WEIGHT + 0.1 * t.action for t in (x, y))
    expected = np.log1p(np.exp(mine)) + np.log1p(np.exp(-theirs))
    if penalized:
        excess = np.linalg.norm([*WEIGHT, 0.1]) - 3.0
        assert excess < 0
        expected += 5 * (0 if one_sided else excess**2)
    np.testing.assert_allclose(output.value, expected, rtol=1e-5)
    np.testing.assert_array_equal(output.metrics["expert_accuracy"], theirs > 0)
    np.testing.assert_array_equal(output.metrics["policy_accuracy"], mine <= 0)


def test_both_are_seen_on_one_scale():
    env = envs.make("pendulum")
    loud = np.float32(np.linspace(-9, 9, N))
    x, y = steps(0, loud), steps(1, loud)
    x = dataclasses.replace(x, extras={"log_prob": np.zeros(N), "expert": y}, task=np.arange(N))

    def normalize(timestep):
        return dataclasses.replace(timestep, observation=timestep.observation / 2 - 1)

    both = adversarial.compare(stub(normalize=normalize), env, Batch(x, jnp.float32(0)))
    np.testing.assert_array_equal(
        both.played.observation, x.observation
    )  # it is normalized already
    np.testing.assert_allclose(both.shown.observation, y.observation / 2 - 1)
    np.testing.assert_allclose(both.shown.next_observation, y.next_observation / 2 - 1)
    for seen in (both.played, both.shown):
        np.testing.assert_allclose(seen.action, np.clip(loud, -2, 2))
        assert seen.extras == {} and seen.task == ()


def test_a_gradient_penalty_without_real_numbers_is_refused():
    settings = {k: v for k, v in gail.TINY.items() if k != "env"}
    with pytest.raises(UserError, match="penalized is on, but neither observations nor actions"):
        gail.gail(envs.make("catch"), settings)


def test_scaled_rewards_are_refused():
    settings = {k: v for k, v in gail.TINY.items() if k != "env"}
    with pytest.raises(UserError, match="gail computes rewards of its own from what it observes"):
        gail.gail(envs.make("pendulum"), settings | {"normalization.reward": True})
