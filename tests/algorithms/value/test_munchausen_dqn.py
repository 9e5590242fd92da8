"""Munchausen DQN's target against NumPy."""

import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.value.munchausen_dqn import munchausen_dqn
from jaxrl.core.settings import Static
from tests.kit.stub import huber, stub, transitions

N = 64
RNG = np.random.default_rng(1)
TABLE, TARGET = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
TEMPERATURE, WEIGHT, LOWEST, HUBER, DISCOUNT = 0.5, 0.9, -0.3, 0.5, 0.9


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_the_loss_is_that_of_equation_1():
    """The target network's policy rewards the action that it finds likely, and its soft value is
    that of the next state."""
    hyper = {"temperature": TEMPERATURE, "weight": WEIGHT, "lowest": LOWEST}
    hyper |= {"huber": HUBER, "discount": DISCOUNT}
    network = lambda table: lambda s: jnp.asarray(table[s.observation][..., None])
    net = stub(q=network(TABLE), target={"q": network(TARGET)}, hyper=hyper)
    x = transitions(N)
    recipe = munchausen_dqn.recipe(envs.make("cartpole"), Static(munchausen_dqn.Config()))
    output = recipe.losses[0](net, x)

    log_pi = TEMPERATURE * log_softmax(TARGET[:N] / TEMPERATURE)[np.arange(N), x.action]
    assert (log_pi < LOWEST).any() and (log_pi > LOWEST).any()
    log_next = log_softmax(TARGET[N:] / TEMPERATURE)
    soft = (np.exp(log_next) * (TARGET[N:] - TEMPERATURE * log_next)).sum(-1)
    reward = x.reward + WEIGHT * np.maximum(log_pi, LOWEST)
    target = reward + DISCOUNT * ~x.terminated * soft  # a truncated step bootstraps
    error = np.abs(TABLE[np.arange(N), x.action] - target)
    np.testing.assert_allclose(output.value, huber(error, HUBER), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.priority, error, rtol=1e-4, atol=1e-5)
