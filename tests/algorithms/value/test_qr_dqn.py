"""QR-DQN's head against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.qr_dqn import qr_dqn
from jaxrl.core import random, settings
from jaxrl.core.settings import Static
from tests.kit.stub import huber, mask_actions, stub, transitions

N, A, ATOMS = 64, 3, 5
RNG = np.random.default_rng(1)
TABLE, TARGET = RNG.normal(size=(2, 2 * N, A, ATOMS)).astype(np.float32)
HYPER = {"discount": 0.9, "huber": 0.5}
HYPER |= {"exploration.start": 1.0, "exploration.end": 1.0, "exploration.steps": 1.0}


def net_of(table=TABLE, target=TARGET, **hyper):
    network = lambda table: lambda s: jnp.asarray(table)[s.observation]
    known = {"hyper": HYPER | hyper, "env_steps": jnp.float32(0)}
    return stub(q=network(table), target={"q": network(target)}, **known)


def recipe(num_quantiles=ATOMS):
    config = settings.replace(qr_dqn.Config(), {"num_quantiles": num_quantiles})
    return qr_dqn.recipe(envs.make("cartpole"), Static(config))


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
def test_the_loss_is_that_of_equation_10(legal):
    x = transitions(N, A)
    x = mask_actions(x, A) if legal else x
    output = recipe().losses[0](net_of(), x)

    q = TARGET[N:].mean(-1)
    q = np.where(x.next_timestep.legal_actions, q, -np.inf) if legal else q
    rows, tau = np.arange(N), (np.arange(ATOMS) + 0.5) / ATOMS
    following = TARGET[N:][rows, q.argmax(-1)]
    # After a terminal step the whole distribution is the reward; a truncated step bootstraps.
    goal = x.reward[:, None] + 0.9 * ~x.terminated[:, None] * following
    assert (goal[x.terminated] == x.reward[x.terminated][:, None]).all()
    error = goal[:, None, :] - TABLE[rows, x.action][:, :, None]  # [B, quantiles, targets]
    expected = np.abs(tau[:, None] - (error < 0)) * huber(error, 0.5)
    np.testing.assert_allclose(output.value, expected.mean(2).sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(output.priority, output.value)


def test_only_legal_actions_are_chosen():
    timestep = mask_actions(transitions(N, A), A).timestep
    for greedy in (False, True):
        action = recipe().act(net_of(), timestep, (), random.key(2), greedy)[0]
        assert timestep.legal_actions[np.arange(N), action].all()


def test_one_quantile_with_a_large_kappa_is_the_mean_of_dqn():
    """The loss is half of the squared error, whose minimizer is the mean."""
    x, (q_loss,) = transitions(N, A), recipe(1).losses
    table, target = TABLE[..., :1], TARGET[..., :1]
    total = lambda table: q_loss(net_of(table, target, huber=1e3), x).value.sum()
    goal = x.reward + 0.9 * ~x.terminated * TARGET[N:, :, 0].max(-1)
    rows, expected = np.arange(N), np.zeros_like(table)
    expected[rows, x.action, 0] = 0.5 * (TABLE[rows, x.action, 0] - goal)
    np.testing.assert_allclose(jax.grad(total)(jnp.asarray(table)), expected, rtol=1e-3, atol=1e-4)
