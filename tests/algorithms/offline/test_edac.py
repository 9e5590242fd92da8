"""SAC-N and EDAC: the target's minimum and the critics' diversity, against NumPy."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import edac, sac_n
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.spaces import Box
from tests.kit.stub import losses_of, stub, transitions

SPACE = Box((-2.0, -1.0), (2.0, 1.0), (2,))
ENV = dataclasses.replace(envs.make("pendulum"), action_space=SPACE)
N, E = 16, 4
RNG = np.random.default_rng(6)
SLOPE = RNG.normal(size=(2 * N, 2, E)).astype(np.float32)
DRAWN = RNG.uniform(-1, 1, (2 * N, 2)).astype(np.float32)
LOG_PROB = RNG.normal(size=2 * N).astype(np.float32)
X = dataclasses.replace(transitions(N), action=RNG.uniform(-1, 1, (N, 2)).astype(np.float32))
HYPER = {"discount": 0.9, "reward_scale": 2.0, "diversity": 0.7}


def values(slope):
    return lambda s, a: jnp.einsum("bd,bde->be", a, slope[s.observation])


def critic_loss(module, slope=SLOPE):
    policy = lambda s: types.SimpleNamespace(
        sample_and_log_prob=lambda seed: (DRAWN[s.observation], LOG_PROB[s.observation])
    )
    net = stub(
        actor=policy,
        critic=values(slope),
        target={"critic": values(2 * slope)},
        temperature=lambda: np.float32(0.3),
        hyper=HYPER,
        key=lambda: None,
    )
    config = replace(module.Config(), {"num_critics": E})
    return losses_of(module.recipe(ENV, Static(config)))["critic_loss"](net, X)


def test_the_target_is_the_minimum_of_all_critics():
    entropy = LOG_PROB[N:] + np.log(2.0)  # half-widths of 2 and 1
    following = np.einsum("bd,bde->be", DRAWN[N:], 2 * SLOPE[N:]).min(-1) - 0.3 * entropy
    target = 2 * X.reward + 0.9 * ~X.terminated * following
    q = np.einsum("bd,bde->be", X.action, SLOPE[:N])
    expected = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(critic_loss(sac_n).value, expected, rtol=1e-4)


def test_critics_that_rise_the_same_way_are_penalized():
    output = critic_loss(edac)
    gradient = SLOPE[:N] * np.array([2.0, 1.0])[:, None]  # by half-widths
    unit = gradient / np.linalg.norm(gradient, axis=1, keepdims=True)
    cosines = np.einsum("bde,bdf->bef", unit, unit)
    expected = (cosines.sum((1, 2)) - E) / (E - 1)
    np.testing.assert_allclose(output.metrics["agreement"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        output.value, critic_loss(sac_n).value + 0.7 * expected, rtol=1e-4, atol=1e-5
    )


def test_the_penalty_moves_the_critics_and_is_bounded():
    """Copies of one critic have the largest penalty, pairs of opposites the smallest."""
    same = np.repeat(SLOPE[..., :1], E, -1)
    np.testing.assert_allclose(critic_loss(edac, same).metrics["agreement"], E, rtol=1e-4)
    opposite = same * np.array([1.0, -1.0, 1.0, -1.0], np.float32)
    lowest = critic_loss(edac, opposite).metrics["agreement"]
    np.testing.assert_allclose(lowest, -E / (E - 1), rtol=1e-4)
    penalty = lambda slope: critic_loss(edac, slope).metrics["agreement"].sum()
    assert (jax.grad(penalty)(jnp.asarray(SLOPE))[:N] != 0).any()


def test_a_single_critic_is_refused():
    with pytest.raises(UserError, match=r"num_critics is 1; edac compares critics"):
        edac.edac.agent(ENV, replace(edac.Config(), {"num_critics": 1}))
