"""FQF's losses and values against NumPy, with known quantile functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.fqf import fqf, fraction_loss, q_loss
from jaxrl.core import random, settings
from jaxrl.core.settings import Static
from jaxrl.networks.q_network import FractionProposal
from tests.kit.stub import huber, mask_actions, stub, transitions

N, A, STEPS = 64, 3, 5
RNG = np.random.default_rng(1)
TABLE, TARGET = RNG.normal(size=(2, 2 * N, A, 2)).astype(np.float32)
LOGITS = RNG.normal(size=(2 * N, STEPS)).astype(np.float32)
HYPER = {"discount": 0.9, "huber": 0.5}
HYPER |= {"exploration.start": 1.0, "exploration.end": 1.0, "exploration.steps": 1.0}
ROWS = np.arange(N)


def at(table, tau, power=2):
    """Return quantiles a + b tau^2."""
    return table[..., :1] + table[..., 1:] * tau[:, None, :] ** power


def net_of(table=TABLE, logits=LOGITS, power=2):
    """Make networks that know the quantiles of tables and whose features are the observations'
    numbers."""

    def network(table):
        rows = lambda s: jnp.asarray(table)[s.observation]
        return lambda s, tau=None: s.observation if tau is None else at(rows(s), tau, power)

    def fractions(number):
        share = jax.nn.softmax(jnp.asarray(logits)[number])
        return jnp.concatenate([jnp.zeros_like(share[:, :1]), jnp.cumsum(share, -1)], -1)

    return stub(
        q=network(table),
        fractions=fractions,
        target={"q": network(TARGET)},
        hyper=HYPER,
        env_steps=jnp.float32(0),
    )


def edges(logits):
    share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return np.concatenate([np.zeros((len(share), 1)), np.cumsum(share, -1)], -1)


def middles(edges):
    return (edges[:, 1:] + edges[:, :-1]) / 2


def recipe():
    config = settings.replace(fqf.Config(), {"num_fractions": STEPS})
    return fqf.recipe(envs.make("cartpole"), Static(config))


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
def test_quantiles_regress_at_the_proposed_fractions(legal):
    x = transitions(N, A)
    x = mask_actions(x, A) if legal else x
    output = q_loss(net_of(), x)

    now, following = edges(LOGITS[:N]), edges(LOGITS[N:])
    q = (np.diff(following)[:, None] * at(TARGET[N:], middles(following))).sum(-1)
    q = np.where(x.next_timestep.legal_actions, q, -np.inf) if legal else q
    tau = middles(now)
    keep = 0.9 * ~x.terminated[:, None]  # a truncated step bootstraps
    goal = x.reward[:, None] + keep * at(TARGET[N:], tau)[ROWS, q.argmax(-1)]
    error = goal[:, None, :] - at(TABLE[:N], tau)[ROWS, x.action][:, :, None]
    expected = np.abs(tau[:, :, None] - (error < 0)) * huber(error, 0.5) / 0.5
    np.testing.assert_allclose(output.value, expected.mean(2).sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(output.priority, output.value)


def test_proposals_descend_the_distance_of_the_steps_from_the_quantile_function():
    """The gradient with respect to the fractions is that of the integral of |a + b tau^2 - steps|;
    with respect to the quantiles there is none."""
    x = transitions(N, A)
    b, grid = np.abs(TABLE[ROWS, x.action, 1]), (np.arange(200_000) + 0.5) / 200_000

    def distance(row, inner):
        bounds = np.concatenate([[0.0], inner, [1.0]])
        step = np.searchsorted(inner, grid)
        return b[row] * np.abs(grid**2 - middles(bounds[None])[0][step] ** 2).mean()

    table = TABLE.copy()  # increasing quantiles
    table[..., 1] = np.abs(table[..., 1])
    total = lambda table, logits: fraction_loss(net_of(table, logits), x).sum()
    none, slope = jax.jit(jax.grad(total, (0, 1)))(table, LOGITS)
    for row in range(3):
        inner = edges(LOGITS[:N])[row, 1:-1]
        by_fraction = [
            (distance(row, inner + h) - distance(row, inner - h)) / 2e-3
            for h in 1e-3 * np.eye(STEPS - 1)
        ]
        share = np.diff(edges(LOGITS[:N])[row])  # of a sum of a softmax, by its logits:
        jacobian = share * (np.tri(STEPS) - np.cumsum(share)[:, None])[:-1]
        np.testing.assert_allclose(slope[row], by_fraction @ jacobian, rtol=2e-2, atol=2e-4)
    assert not np.asarray(none).any()


def test_no_gradient_of_the_quantiles_reaches_the_proposals():
    x = transitions(N, A)
    slope = jax.jit(jax.grad(lambda logits: q_loss(net_of(logits=logits), x).value.sum()))
    assert not np.asarray(slope(LOGITS)).any()


def test_the_best_action_is_that_of_the_mean():
    """Steps through the middles have the mean of a uniform return, wherever their edges are."""
    x = mask_actions(transitions(N, A), A).timestep
    action = recipe().act(net_of(power=1), x, (), random.key(2), True)[0]
    mean = TABLE[:N, :, 0] + TABLE[:N, :, 1] / 2
    np.testing.assert_array_equal(action, np.where(x.legal_actions, mean, -np.inf).argmax(-1))
    action = recipe().act(net_of(), x, (), random.key(2), False)[0]
    assert x.legal_actions[ROWS, action].all()


def test_proposals_begin_almost_uniform():
    network, features = FractionProposal(4), jnp.ones((3, 8))
    got = network.apply(network.init(random.key(0), features), features)
    np.testing.assert_allclose(got, np.tile(np.linspace(0, 1, 5), (3, 1)), atol=0.02)
