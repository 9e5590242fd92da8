"""IQN's loss and its policies against NumPy, with known quantile functions."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.iqn import iqn
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from tests.kit.stub import huber, mask_actions, stub, transitions

N, A = 64, 3
RNG = np.random.default_rng(1)
TABLE, TARGET = RNG.normal(size=(2, 2 * N, A, 2)).astype(np.float32)
SIZES = {"num_fractions": 5, "num_target_fractions": 4, "num_action_fractions": 3}
HYPER = {"discount": 0.9, "huber": 0.5, "risk": 1.0}
HYPER |= {"exploration.start": 1.0, "exploration.end": 1.0, "exploration.steps": 1.0}


def at(table, tau):
    """Return quantiles of uniform returns from a to a + b."""
    return table[..., :1] + table[..., 1:] * tau[:, None, :]


def net_of(table=TABLE, fractions=None, seed=0, **hyper):
    """Make networks that know the quantiles of tables, and append the fractions that they are asked
    for to `fractions`."""

    def network(table):
        def quantiles(s, tau):
            if fractions is not None:
                fractions.append(np.asarray(tau))
            return at(jnp.asarray(table)[s.observation], tau)

        return quantiles

    keys = {name: random.key(seed + i) for i, name in enumerate(("choose", "evaluate", "predict"))}
    known = {"key": keys.__getitem__, "env_steps": jnp.float32(0)}
    target = {"q": network(TARGET)}
    return stub(q=network(table), target=target, hyper=HYPER | hyper, **known)


def recipe(**changes):
    config = settings.replace(iqn.Config(), SIZES | changes)
    return iqn.recipe(envs.make("cartpole"), Static(config))


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
def test_the_loss_is_that_of_equation_3(legal):
    x, fractions = transitions(N, A), []
    x = mask_actions(x, A) if legal else x
    (q_loss,) = recipe(distortion="cvar").losses
    output = q_loss(net_of(fractions=fractions, risk=0.5), x)

    choice, following, tau = fractions
    assert [t.shape[-1] for t in fractions] == [3, 4, 5]
    assert choice.max() < 0.5 < following.max() and tau.max() > 0.5
    q = at(TARGET[N:], choice).mean(-1)
    q = np.where(x.next_timestep.legal_actions, q, -np.inf) if legal else q
    rows = np.arange(N)
    keep = 0.9 * ~x.terminated[:, None]  # a truncated step bootstraps
    goal = x.reward[:, None] + keep * at(TARGET[N:], following)[rows, q.argmax(-1)]
    error = goal[:, None, :] - at(TABLE[:N], tau)[rows, x.action][:, :, None]
    expected = np.abs(tau[:, :, None] - (error < 0)) * huber(error, 0.5) / 0.5
    np.testing.assert_allclose(output.value, expected.mean(2).sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(output.priority, output.value)


def test_only_legal_actions_are_chosen():
    timestep = mask_actions(transitions(N, A), A).timestep
    for greedy in (False, True):
        action = recipe().act(net_of(), timestep, (), random.key(2), greedy)[0]
        assert timestep.legal_actions[np.arange(N), action].all()


@pytest.mark.parametrize(
    ("distortion", "risk", "draws"),
    [("cvar", 1.0, 3), ("wang", 0.0, 3), ("cpw", 1.0, 3), ("power", 0.0, 3), ("norm", 9.0, 1)],
)
def test_at_neutral_risk_every_distortion_is_the_mean(distortion, risk, draws):
    fractions, x = [], transitions(N, A).timestep
    for changes in ({}, {"distortion": distortion, "norm_draws": draws}):
        act = recipe(num_action_fractions=2000, **changes).act
        action = act(net_of(fractions=fractions, risk=risk), x, (), random.key(2), True)[0]
    np.testing.assert_allclose(fractions[1], fractions[0], atol=2e-6)
    mean = TABLE[:N, :, 0] + TABLE[:N, :, 1] / 2
    np.testing.assert_allclose(at(TABLE[:N], fractions[1]).mean(-1), mean, atol=0.1)
    assert (mean.max(-1) - mean[np.arange(N), action]).max() < 0.1


@pytest.mark.parametrize(
    ("distortion", "risk", "mean"),
    [
        # The mean of the risky arm, uniform from -1.4 to 2.6: the integral of its quantiles at the
        # distorted fractions, by hand or, to the digits given, by a sum over a million of them.
        ("neutral", 1.0, 0.6),
        ("cvar", 0.25, -0.9),
        ("wang", -0.75, -0.2081),
        ("power", -2.0, -0.4),
        ("norm", 0.0, 0.6),
    ],
)
def test_risk_aversion_takes_the_safe_arm(distortion, risk, mean):
    arms = lambda safe: np.float32([[[safe, 0.0], [-1.4, 4.0]]])
    act = recipe(num_action_fractions=20_000, distortion=distortion).act
    x = transitions(1).timestep
    for margin, best in ((-0.05, 1), (0.05, 0)):
        net = net_of(arms(mean + margin), seed=3, risk=risk)
        assert act(net, x, (), random.key(2), True)[0] == best


def test_a_share_of_outcomes_is_at_most_one():
    config = dataclasses.replace(iqn.Config(), distortion="cvar", risk=1.5)
    with pytest.raises(UserError, match=r"risk is 1\.5; the distortion cvar takes one above 0"):
        iqn(envs.make("cartpole"), config)
