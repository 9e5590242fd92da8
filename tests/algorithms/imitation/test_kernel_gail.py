"""GAIL with a kernel reward: its loss against NumPy, and the best reward in closed form."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import kernel_gail
from jaxrl.algorithms.imitation.shared.adversarial import Beside
from jaxrl.core import random
from jaxrl.core.settings import Values
from jaxrl.core.types import TimeStep
from tests.kit.stub import stub, transitions

N, M = 32, 5
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(2 * N, M)).astype(np.float32)


def stub_net(weights, radius, penalty):
    kernel = Values({"radius": radius, "penalty_weight": penalty})
    return stub(
        weights=lambda: weights,
        features=lambda timestep, action: jnp.asarray(FEATURES)[timestep.observation],
        hyper={"kernel": kernel},
    )


def shown_beside_played():
    x = jax.tree.map(jnp.asarray, transitions(N))
    return Beside(x, jax.tree.map(lambda a: a[::-1], x))


def test_weights_beyond_the_ball_are_taken_back_to_it():
    weights, x = np.float32(RNG.normal(size=M)), shown_beside_played()
    for radius in (0.5, 50.0):
        output = kernel_gail.reward_loss(stub_net(jnp.asarray(weights), radius, 0.3), x)
        inside = weights * min(1, radius / np.linalg.norm(weights))
        gap = FEATURES[:N][::-1] @ inside - FEATURES[:N] @ inside
        expected = 0.3 * (inside**2).sum() / 2 - gap
        np.testing.assert_allclose(output.value, expected, rtol=1e-4, atol=1e-5)


def test_the_best_weights_are_the_gap_of_mean_features():
    """The maximum of theta . gap - weight |theta|^2 / 2 is at theta = gap / weight."""
    played = jax.tree.map(jnp.asarray, transitions(N))
    shown = jax.tree.map(jnp.asarray, transitions(N, seed=1))
    seen = shown.timestep.observation + N
    timestep = dataclasses.replace(shown.timestep, observation=seen)
    shown = dataclasses.replace(shown, timestep=timestep)
    gap = FEATURES[N:].mean(0) - FEATURES[:N].mean(0)
    optimizer = optax.sgd(0.5)

    def step(carry, _):
        weights, state = carry
        mean = lambda w: kernel_gail.reward_loss(stub_net(w, 1e3, 0.8), Beside(played, shown)).value
        updates, state = optimizer.update(jax.grad(lambda w: mean(w).mean())(weights), state)
        return (optax.apply_updates(weights, updates), state), None

    begin = jnp.zeros(M)
    (weights, _), _ = jax.lax.scan(step, (begin, optimizer.init(begin)), None, 60)
    np.testing.assert_allclose(weights, gap / 0.8, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [0.4, 3.0])
def test_a_step_ends_in_the_ball(size):
    """Weights outside would have no gradient toward it."""
    weights = jnp.full(M, size / M**0.5)
    net = stub_net(weights, 2.0, 0.1)
    net.parts = {"weights": types.SimpleNamespace(params={"weights": weights})}
    net.descend = lambda loss, minibatch: net
    net.with_params = lambda weights: weights
    found = np.asarray(kernel_gail.descend_in_ball(net, None)["weights"])
    np.testing.assert_allclose(np.linalg.norm(found), min(size, 2.0), rtol=1e-5)
    assert (found > 0).all()


def test_features_are_those_of_a_gaussian_kernel():
    env = envs.make("pendulum")
    scale = 0.7
    network = kernel_gail.RandomFeatures(env.observation_space, env.action_space, 20_000, scale)
    seen = jnp.asarray(RNG.normal(size=(2, 3)), jnp.float32)
    no = jnp.zeros(2)
    timestep = TimeStep(seen, no, no > 0, no > 0, no > 0)
    action = jnp.asarray([[1.0], [-0.5]])
    params = network.init(random.key(0), timestep, action)
    features = network.apply(params, timestep, action)
    inputs = np.concatenate([seen, action / 2], -1)  # actions in half-widths
    distance = ((inputs[0] - inputs[1]) ** 2).sum()
    kernel = np.exp(-distance / (2 * scale**2))
    np.testing.assert_allclose(features @ features.T, [[1, kernel], [kernel, 1]], atol=0.03)
