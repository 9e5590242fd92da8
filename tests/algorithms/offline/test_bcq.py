"""BCQ: losses and acting against NumPy, with tables for networks, and its generator's loss against
the likelihood of a linear Gaussian model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl import envs
from jaxrl.algorithms.offline import bcq
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.spaces import Box
from tests.kit.stub import losses_of, stub, transitions

HALF = np.float32([2.0, 1.0])
ENV = dataclasses.replace(envs.make("pendulum"), action_space=Box((-2.0, -1.0), (2.0, 1.0), (2,)))
N, D, Z, CANDIDATES, BACKUP = 12, 2, 4, 5, 3
RNG = np.random.default_rng(4)
DECODE = RNG.normal(size=(2 * N, D, Z)).astype(np.float32)
MOVE, MOVE_COPY = RNG.normal(size=(2, 2 * N, D, D)).astype(np.float32)
SLOPE, SLOPE_COPY = RNG.normal(size=(2, 2 * N, D, 2)).astype(np.float32)
X = dataclasses.replace(transitions(N), action=RNG.uniform(-1, 1, (N, D)).astype(np.float32) * HALF)
KEY = random.key(5)
HYPER = {"discount": 0.9, "reward_scale": 2.0, "perturbation": 0.3, "minimum_weight": 0.7}
HYPER |= {"latent_bound": 0.4, "divergence_weight": 0.02}


def times(table):
    """A network that multiplies vectors [..., B, K] by the matrix of each state."""
    return lambda s, x: jnp.einsum("bdk,...bk->...bd", table[s.observation], x)


def values(slope):
    return lambda s, a: jnp.einsum("bd,bde->be", a, slope[s.observation])


NET = stub(
    decoder=times(DECODE),
    perturbation=times(MOVE),
    critic=values(SLOPE),
    target={"perturbation": times(MOVE_COPY), "critic": values(SLOPE_COPY)},
    hyper=HYPER,
    key=lambda: KEY,
)
CONFIG = replace(bcq.Config(), {"candidates": CANDIDATES, "backup_candidates": BACKUP})
RECIPE = bcq.recipe(ENV, Static(CONFIG))
LOSSES = losses_of(RECIPE)


def candidate(state, latent, move):
    """Return the action, in half-widths, that one latent vector makes of a state's tables."""
    unit = np.tanh(DECODE[state] @ np.clip(latent, -0.4, 0.4))
    return np.clip(unit + 0.3 * np.tanh(move[state] @ unit), -1, 1)


def test_the_target_is_that_of_the_best_perturbed_candidate():
    latent = np.asarray(jax.random.normal(KEY, (BACKUP, N, Z)))
    assert (np.abs(latent) > 0.4).mean() > 0.5
    expected = []
    for i in range(N):
        worth = []
        for j in range(BACKUP):
            action = HALF * candidate(N + i, latent[j, i], MOVE_COPY)
            q = action @ SLOPE_COPY[N + i]
            worth.append(0.7 * q.min() + 0.3 * q.max())
        target = 2 * X.reward[i] + 0.9 * max(worth) * (not X.terminated[i])
        expected.append(0.5 * ((X.action[i] @ SLOPE[i] - target) ** 2).sum())
    output = LOSSES["critic_loss"](NET, X)
    np.testing.assert_allclose(output.value, expected, rtol=1e-4, atol=1e-5)


def test_the_perturbation_climbs_the_first_critic():
    latent = np.asarray(jax.random.normal(KEY, (N, Z)))
    q = [HALF * candidate(i, latent[i], MOVE) @ SLOPE[i, :, 0] for i in range(N)]
    expected = -np.float32(q)
    loss = LOSSES["perturbation_loss"]
    assert loss.parts == ("perturbation",)
    np.testing.assert_allclose(loss(NET, X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("greedy", [True, False])
def test_it_takes_the_candidate_that_the_first_critic_likes_best(greedy):
    action = RECIPE.act(NET, X.timestep, (), KEY, greedy)[0]
    latent = np.asarray(jax.random.normal(KEY, (CANDIDATES, N, Z)))
    by_least = 0
    for i in range(N):
        each = [HALF * candidate(i, latent[j, i], MOVE) for j in range(CANDIDATES)]
        q = np.stack(each) @ SLOPE[i]
        np.testing.assert_allclose(action[i], each[q[:, 0].argmax()], rtol=1e-4, atol=1e-5)
        by_least += q.min(-1).argmax() != q[:, 0].argmax()
    assert by_least > 0


def likelihood_net(count, mean, log_scale, weight, offset):
    """A net whose decoder is linear before it is squashed, and whose encoder says one law."""
    both = np.tile(np.concatenate([mean, log_scale]).astype(np.float32), (count, 1))
    linear = lambda s, z: jnp.arctanh(z @ weight.T + offset)
    return stub(encoder=lambda s, a: both, decoder=linear, key=lambda: KEY, hyper=HYPER)


def test_the_generators_loss_is_the_likelihood_at_the_exact_posterior_and_above_it_elsewhere():
    """The loss, in units of beta / Z per nat, bounds -log p(a|s) of a decoder whose noise has the
    variance beta D / (2 Z), less the log-density of that noise at its mean."""
    beta = HYPER["divergence_weight"]
    variance = beta * D / (2 * Z)
    weight = np.zeros((D, Z), np.float32)
    weight[:, :2] = [[0.12, -0.04], [0.04, 0.12]]  # orthogonal columns: the posterior is diagonal
    offset, unit = np.float32([0.1, -0.2]), np.float32([0.2, -0.1])
    precision = 1 + (weight**2).sum(0) / variance
    mean, log_scale = weight.T @ (unit - offset) / variance / precision, -0.5 * np.log(precision)
    count = 100_000
    x = dataclasses.replace(
        transitions(count), action=np.tile(unit * HALF, (count, 1)).astype(np.float32)
    )
    law = scipy.stats.multivariate_normal(offset, weight @ weight.T + variance * np.eye(D))
    constant = 0.5 * D * np.log(2 * np.pi * variance)
    expected = beta / Z * (-law.logpdf(unit) - constant)

    def loss(mean, log_scale):
        net = likelihood_net(count, mean, log_scale, weight, offset)
        return float(LOSSES["generator_loss"](net, x).value.mean())

    np.testing.assert_allclose(loss(mean, log_scale), expected, rtol=0.01)
    assert LOSSES["generator_loss"].parts == ("encoder", "decoder")
    for other in ((mean + 0.3, log_scale), (mean, log_scale + 0.5), (mean, log_scale - 0.5)):
        assert loss(*other) > 1.05 * expected


def test_discrete_actions_are_referred_to_discrete_bcq():
    with pytest.raises(UserError, match=r"^bcq needs continuous actions; discrete_bcq is for"):
        bcq.bcq.agent(envs.make("cartpole"), bcq.Config())
