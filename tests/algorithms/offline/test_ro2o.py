"""RO2O: what it adds to SAC-N's losses, against NumPy, with functions for networks."""

import dataclasses
import types
import zlib

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import ro2o, sac_n
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.spaces import Discrete
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")  # actions in [-2, 2]
N, K, E = 6, 5, 3
RNG = np.random.default_rng(11)
SLOPE = np.array([1.0, -2.0, 0.5], np.float32)
HYPER = {"discount": 0.9, "reward_scale": 1.0, "radius": 0.2, "policy_weight": 0.7}
HYPER |= {"q_weight": 0.3, "ood_weight": 0.4, "doubt": 2.0, "doubt_end": 1.0, "doubt_steps": 100.0}
X = transitions(N, actions=0)
SEEN = RNG.normal(size=(2 * N, 2)).astype(np.float32)
X = dataclasses.replace(
    X,
    timestep=dataclasses.replace(X.timestep, observation=SEEN[:N]),
    next_timestep=dataclasses.replace(X.next_timestep, observation=SEEN[N:]),
    action=X.action[:, None],
)


def key(name=""):
    return jax.random.fold_in(random.key(3), zlib.crc32(name.encode()))


def value(observation, action):
    """Values [..., E] of observations [..., 2] and actions [..., 1]."""
    return jnp.sin(3 * observation[..., :1]) * SLOPE + action**2 * SLOPE[::-1]


def policy(timestep):
    """A policy whose sample is its mean, so that no randomness is left but the offsets."""
    mean, scale = timestep.observation[..., 1:], jnp.exp(timestep.observation[..., :1])
    inside = distrax.Independent(distrax.Normal(mean, scale), 1)
    said = lambda seed: (mean, mean[..., 0])
    return types.SimpleNamespace(distribution=inside, sample_and_log_prob=said)


NET = stub(
    actor=policy,
    critic=lambda s, a: value(s.observation, a),
    target={"critic": lambda s, a: value(s.observation, a)},
    temperature=lambda: jnp.float32(0.3),
    env_steps=jnp.float32(25.0),
    key=key,
    hyper=HYPER,
)


def output(name, module=ro2o):
    settings = {"num_critics": E} | ({"num_neighbors": K} if module is ro2o else {})
    config = replace(module.Config(), settings)
    return losses_of(module.recipe(ENV, Static(config)))[name](NET, X)


def neighbors(name):
    """Observations [K, N, 2] near those of the batch, by the same offsets."""
    first = jax.random.split(key(name), K + 1)[0]
    offsets = 0.2 * np.asarray(jax.random.uniform(first, (K, 2), minval=-1, maxval=1))
    assert np.abs(offsets).max() <= 0.2 and offsets.min() < 0 < offsets.max()
    return SEEN[None, :N] + offsets[:, None]


def test_the_critics_are_smooth_and_lower_where_they_disagree():
    d = value(neighbors("values"), X.action) - value(SEEN[:N], X.action)
    change = (np.where(d > 0, 0.8, 0.2) * d**2).mean(-1).max(0)
    moved = neighbors("doubt")
    doubted = np.asarray(value(moved, moved[..., 1:])).std(-1)
    lowered = 0.5 * (1.75 * doubted) ** 2  # a quarter of the way from 2 to 1
    got, plain = output("critic_loss"), output("critic_loss", sac_n)
    np.testing.assert_allclose(got.metrics["value_change"], change, rtol=1e-4)
    expected = plain.value + 0.3 * change + 0.4 * lowered.mean(0)
    np.testing.assert_allclose(got.value, expected, rtol=1e-4)


def test_the_policy_is_smooth():
    def kl(here, there):
        """The divergence of normals (mean, log scale), given as observations (log scale, mean)."""
        log_ratio = there[..., 0] - here[..., 0]
        square = np.exp(2 * here[..., 0]) + (here[..., 1] - there[..., 1]) ** 2
        return log_ratio + square / (2 * np.exp(2 * there[..., 0])) - 0.5

    moved = neighbors("policy")
    change = (kl(SEEN[:N], moved) + kl(moved, SEEN[:N])).max(0)
    got, plain = output("actor_loss"), output("actor_loss", sac_n)
    np.testing.assert_allclose(got.metrics["policy_change"], change, rtol=1e-3)
    np.testing.assert_allclose(got.value, plain.value + 0.7 * change, rtol=1e-3)


def test_observations_that_cannot_be_moved_are_refused():
    odd = dataclasses.replace(ENV, observation_space=Discrete(3))
    with pytest.raises(UserError, match=r"ro2o moves observations a little, so they must be one"):
        ro2o.ro2o.agent(odd, ro2o.Config())


def test_a_single_critic_is_refused():
    with pytest.raises(UserError, match="num_critics is 1, but ro2o compares critics"):
        ro2o.ro2o.agent(ENV, replace(ro2o.Config(), {"num_critics": 1}))
