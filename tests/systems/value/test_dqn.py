"""The losses of DQN's line, against NumPy."""

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.systems.value.double_dqn import double_dqn
from jaxrl.systems.value.dqn import dqn
from jaxrl.systems.value.n_step_dqn import n_step_dqn
from tests.kit.stub import stub, transitions

N = 64
RNG = np.random.default_rng(1)
TABLE, COPY = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)


def loss_of(system):
    """Values and reports of the loss at tables."""
    recipe = system.recipe(envs.make("cartpole"), system.Config())
    net = stub(
        q=lambda s: TABLE[s.observation][..., None],
        target={"q": lambda s: COPY[s.observation][..., None]},
        hyper={"discount": 0.9, "huber": 0.5},
    )
    discount = np.full(N, 0.7, np.float32)
    x = transitions(N, discount=discount)
    return x, recipe.losses["q_loss"].function(net, x)


def error(x, following, discount):
    """Terminated steps are worth their reward; truncated ones go on."""
    target = x.reward + discount * ~x.terminated * following
    return TABLE[np.arange(N), x.action] - target


@pytest.mark.parametrize(
    ("system", "following", "discount"),
    [
        (dqn, COPY[N:].max(-1), 0.9),
        (double_dqn, COPY[np.arange(N, 2 * N), TABLE[N:].argmax(-1)], 0.9),
        (n_step_dqn, COPY[N:].max(-1), 0.7),
    ],
    ids=["dqn", "double", "n-step"],
)
def test_the_error_of_the_action_taken(system, following, discount):
    x, (loss, report) = loss_of(system)
    size = np.abs(error(x, following, discount))
    expected = np.where(size < 0.5, size**2 / 2, 0.5 * (size - 0.25))
    np.testing.assert_allclose(loss, expected, atol=1e-6)
    np.testing.assert_allclose(report["priority"], size, rtol=1e-4, atol=1e-6)
    assert x.truncated.any() and x.terminated.any()
