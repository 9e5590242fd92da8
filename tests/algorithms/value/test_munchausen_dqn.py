"""Munchausen DQN's target, against NumPy."""

import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.value.munchausen_dqn import munchausen_dqn
from tests.kit.stub import huber, stub, transitions

N = 64
RNG = np.random.default_rng(1)
TABLE, COPY = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
TEMPERATURE, WEIGHT, LOWEST, HUBER, DISCOUNT = 0.5, 0.9, -0.3, 0.5, 0.9


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_the_loss_is_that_of_equation_1():
    """The copy's policy rewards the action that it finds likely, and values softly what follows."""
    hyper = {"temperature": TEMPERATURE, "weight": WEIGHT, "lowest": LOWEST}
    of = lambda table: lambda s: jnp.asarray(table[s.observation][..., None])
    net = stub(
        q=of(TABLE), target={"q": of(COPY)}, hyper=hyper | {"huber": HUBER, "discount": DISCOUNT}
    )
    x = transitions(N)
    recipe = munchausen_dqn.recipe(envs.make("cartpole"), munchausen_dqn.Config())
    loss, report = recipe.losses["q_loss"].function(net, x)

    log_pi = TEMPERATURE * log_softmax(COPY[:N] / TEMPERATURE)[np.arange(N), x.action]
    assert (log_pi < LOWEST).any() and (log_pi > LOWEST).any()
    log_next = log_softmax(COPY[N:] / TEMPERATURE)
    soft = (np.exp(log_next) * (COPY[N:] - TEMPERATURE * log_next)).sum(-1)
    reward = x.reward + WEIGHT * np.maximum(log_pi, LOWEST)
    target = reward + DISCOUNT * ~x.terminated * soft  # a truncated step bootstraps
    error = np.abs(TABLE[np.arange(N), x.action] - target)
    np.testing.assert_allclose(loss, huber(error, HUBER), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report["priority"], error, rtol=1e-4, atol=1e-5)
