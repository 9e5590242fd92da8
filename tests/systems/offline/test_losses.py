"""The losses of IQL and TD3+BC, against NumPy."""

import types

import numpy as np

from jaxrl import envs
from jaxrl.systems.offline import iql
from jaxrl.systems.offline.td3_bc import td3_bc
from tests.kit.stub import stub, transitions

N = 64
RNG = np.random.default_rng(2)
VALUE = RNG.normal(size=2 * N).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)


def net(**more):
    return stub(
        value=lambda s: VALUE[s.observation],
        critic=lambda s, a: CRITICS[s.observation] + np.asarray(a)[..., None],
        target={"critic": lambda s, a: COPIES[s.observation] + np.asarray(a)[..., None]},
        hyper={"discount": 0.9, "reward_scale": 2.0, "expectile": 0.8, "temperature": 0.5},
        **more,
    )


def test_the_value_of_iql_is_an_expectile():
    x = transitions(N)
    loss, _ = iql.value_loss(net(), x)
    gap = (COPIES[:N] + x.action[:, None]).min(-1) - VALUE[:N]
    weight = np.where(gap > 0, 0.8, 0.2)
    # Some write the square with a half, some do not: the ratio is one number.
    ratio = np.asarray(loss) / (weight * gap**2)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    assert ratio[0] in (0.5, 1.0) or np.isclose(ratio[0], [0.5, 1.0]).any()


def test_the_critics_of_iql_regress_on_the_next_value():
    x = transitions(N)
    target = 2 * x.reward + 0.9 * ~x.terminated * VALUE[N:]
    q = CRITICS[:N] + x.action[:, None]
    expected = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(iql.critic_loss(net(), x), expected, rtol=1e-4)


def test_the_actor_of_iql_imitates_by_advantage():
    x = transitions(N)
    log_prob = RNG.normal(size=N).astype(np.float32)
    policy = types.SimpleNamespace(log_prob=lambda action: log_prob)
    loss, report = iql.actor_loss(net(actor=lambda s: policy), x)
    advantage = (COPIES[:N] + x.action[:, None]).min(-1) - VALUE[:N]
    expected = -np.minimum(np.exp(advantage / 0.5), iql.LARGEST_WEIGHT) * log_prob
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(report["advantage"], advantage, rtol=1e-5)


def test_the_policy_of_td3_bc_climbs_its_value_and_stays_near_the_data():
    recipe = td3_bc.recipe(envs.make("pendulum"), td3_bc.Config())  # actions in [-2, 2]
    x = transitions(N, actions=0)
    said = RNG.uniform(-2, 2, N).astype(np.float32)
    table = lambda s, a: CRITICS[s.observation] + 3 * np.asarray(a)[..., None]
    known = stub(actor=lambda s: said, critic=table, hyper={"alpha": 2.5})
    loss = recipe.losses["actor_loss"].function(known, x)
    q = CRITICS[:N, 0] + 3 * said
    expected = -2.5 / np.abs(q).mean() * q + ((said - x.action) / 2) ** 2
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
