"""QR-DQN's head, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.qr_dqn import qr_dqn
from jaxrl.core import random, settings
from tests.kit.stub import huber, masked, stub, transitions

N, A, ATOMS = 64, 3, 5
RNG = np.random.default_rng(1)
TABLE, COPY = RNG.normal(size=(2, 2 * N, A, ATOMS)).astype(np.float32)
HYPER = {"discount": 0.9, "huber": 0.5}
HYPER |= {"exploration.start": 1.0, "exploration.end": 1.0, "exploration.steps": 1.0}


def net_of(table=TABLE, copy=COPY, **hyper):
    of = lambda table: lambda s: jnp.asarray(table)[s.observation]
    return stub(q=of(table), target={"q": of(copy)}, hyper=HYPER | hyper, env_steps=jnp.float32(0))


def recipe(num_quantiles=ATOMS):
    config = settings.replace(qr_dqn.Config(), {"num_quantiles": num_quantiles})
    return qr_dqn.recipe(envs.make("cartpole"), config)


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
def test_the_loss_is_that_of_equation_10(legal):
    x = transitions(N, A)
    x = masked(x, A) if legal else x
    loss, report = recipe().losses["q_loss"].function(net_of(), x)

    q = COPY[N:].mean(-1)
    q = np.where(x.next_timestep.legal_actions, q, -np.inf) if legal else q
    rows, tau = np.arange(N), (np.arange(ATOMS) + 0.5) / ATOMS
    following = COPY[N:][rows, q.argmax(-1)]
    # At a terminal state all of the distribution is the reward; a truncated step bootstraps.
    goal = x.reward[:, None] + 0.9 * ~x.terminated[:, None] * following
    assert (goal[x.terminated] == x.reward[x.terminated][:, None]).all()
    error = goal[:, None, :] - TABLE[rows, x.action][:, :, None]  # [B, quantiles, targets]
    expected = np.abs(tau[:, None] - (error < 0)) * huber(error, 0.5)
    np.testing.assert_allclose(loss, expected.mean(2).sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(report["priority"], loss)


def test_only_legal_actions_are_chosen():
    timestep = masked(transitions(N, A), A).timestep
    for greedy in (False, True):
        action = recipe().act(net_of(), timestep, (), random.key(2), greedy)[0]
        assert timestep.legal_actions[np.arange(N), action].all()


def test_one_quantile_with_a_large_kappa_is_the_mean_of_dqn():
    """Half of a squared error, whose minimizer is the mean."""
    x, function = transitions(N, A), recipe(1).losses["q_loss"].function
    table, copy = TABLE[..., :1], COPY[..., :1]
    slope = lambda table: function(net_of(table, copy, huber=1e3), x)[0].sum()
    goal = x.reward + 0.9 * ~x.terminated * COPY[N:, :, 0].max(-1)
    rows, expected = np.arange(N), np.zeros_like(table)
    expected[rows, x.action, 0] = 0.5 * (TABLE[rows, x.action, 0] - goal)
    np.testing.assert_allclose(jax.grad(slope)(jnp.asarray(table)), expected, rtol=1e-3, atol=1e-4)
