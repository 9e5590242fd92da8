"""IQN's loss and its policies, against NumPy: quantile functions that are known."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.iqn import iqn
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from tests.kit.stub import huber, masked, stub, transitions

N, A = 64, 3
RNG = np.random.default_rng(1)
TABLE, COPY = RNG.normal(size=(2, 2 * N, A, 2)).astype(np.float32)
SIZES = {"num_fractions": 5, "num_target_fractions": 4, "num_action_fractions": 3}
HYPER = {"discount": 0.9, "huber": 0.5, "risk": 1.0}
HYPER |= {"exploration.start": 1.0, "exploration.end": 1.0, "exploration.steps": 1.0}


def at(table, tau):
    """Uniform returns: from a to a + b."""
    return table[..., :1] + table[..., 1:] * tau[:, None, :]


def net_of(table=TABLE, copy=COPY, asked=None, seed=0, **hyper):
    """Networks that know the quantiles of `table`, and note which fractions were asked for."""

    def of(table):
        def quantiles(s, tau):
            if asked is not None:
                asked.append(np.asarray(tau))
            return at(jnp.asarray(table)[s.observation], tau)

        return quantiles

    keys = {name: random.key(seed + i) for i, name in enumerate(("choose", "evaluate", "predict"))}
    known = {"key": keys.__getitem__, "env_steps": jnp.float32(0)}
    return stub(q=of(table), target={"q": of(copy)}, hyper=HYPER | hyper, **known)


def recipe(**changes):
    return iqn.recipe(envs.make("cartpole"), settings.replace(iqn.Config(), SIZES | changes))


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
def test_the_loss_is_that_of_equation_3(legal):
    x, asked = transitions(N, A), []
    x = masked(x, A) if legal else x
    function = recipe(distortion="cvar").losses["q_loss"].function
    loss, report = function(net_of(asked=asked, risk=0.5), x)

    choice, following, tau = asked
    assert [t.shape[-1] for t in asked] == [3, 4, 5]
    assert choice.max() < 0.5 < following.max() and tau.max() > 0.5
    q = at(COPY[N:], choice).mean(-1)
    q = np.where(x.next_timestep.legal_actions, q, -np.inf) if legal else q
    rows = np.arange(N)
    keep = 0.9 * ~x.terminated[:, None]  # a truncated step bootstraps
    goal = x.reward[:, None] + keep * at(COPY[N:], following)[rows, q.argmax(-1)]
    error = goal[:, None, :] - at(TABLE[:N], tau)[rows, x.action][:, :, None]
    expected = np.abs(tau[:, :, None] - (error < 0)) * huber(error, 0.5) / 0.5
    np.testing.assert_allclose(loss, expected.mean(2).sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(report["priority"], loss)


def test_only_legal_actions_are_chosen():
    timestep = masked(transitions(N, A), A).timestep
    for greedy in (False, True):
        action = recipe().act(net_of(), timestep, (), random.key(2), greedy)[0]
        assert timestep.legal_actions[np.arange(N), action].all()


@pytest.mark.parametrize(
    ("distortion", "risk", "draws"),
    [("cvar", 1.0, 3), ("wang", 0.0, 3), ("cpw", 1.0, 3), ("power", 0.0, 3), ("norm", 9.0, 1)],
)
def test_at_neutral_risk_every_distortion_is_the_mean(distortion, risk, draws):
    asked, x = [], transitions(N, A).timestep
    for changes in ({}, {"distortion": distortion, "norm_draws": draws}):
        of = recipe(num_action_fractions=2000, **changes)
        action = of.act(net_of(asked=asked, risk=risk), x, (), random.key(2), True)[0]
    np.testing.assert_allclose(asked[1], asked[0], atol=2e-6)
    mean = TABLE[:N, :, 0] + TABLE[:N, :, 1] / 2
    np.testing.assert_allclose(at(TABLE[:N], asked[1]).mean(-1), mean, atol=0.1)
    assert (mean.max(-1) - mean[np.arange(N), action]).max() < 0.1


@pytest.mark.parametrize(
    ("distortion", "risk", "mean"),
    [
        # Of the risky arm, uniform from -1.4 to 2.6: the integral of its quantiles at the distorted
        # fractions, by hand or to the digits given by a sum over a million of them.
        ("neutral", 1.0, 0.6),
        ("cvar", 0.25, -0.9),
        ("wang", -0.75, -0.2081),
        ("power", -2.0, -0.4),
        ("norm", 0.0, 0.6),
    ],
)
def test_who_is_averse_to_risk_takes_the_safe_arm(distortion, risk, mean):
    arms = lambda safe: np.float32([[[safe, 0.0], [-1.4, 4.0]]])
    of = recipe(num_action_fractions=20_000, distortion=distortion)
    x = transitions(1).timestep
    for margin, best in ((-0.05, 1), (0.05, 0)):
        net = net_of(arms(mean + margin), seed=3, risk=risk)
        assert of.act(net, x, (), random.key(2), True)[0] == best


def test_a_share_of_outcomes_is_one():
    config = dataclasses.replace(iqn.Config(), distortion="cvar", risk=1.5)
    with pytest.raises(UserError, match=r"risk is 1\.5; the distortion cvar takes one above 0"):
        iqn(envs.make("cartpole"), config)
