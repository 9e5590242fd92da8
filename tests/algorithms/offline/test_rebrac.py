"""ReBRAC: its two distances against NumPy, with tables for networks."""

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import rebrac
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")  # actions in [-2, 2]
N = 64
RNG = np.random.default_rng(7)
SAID = RNG.uniform(-2, 2, 2 * N).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
X = transitions(N, actions=0, next_action=RNG.uniform(-2, 2, N).astype(np.float32))
LOSSES = losses_of(rebrac.recipe(ENV, Static(rebrac.Config())))
KEY = random.key(0)
HYPER = {"discount": 0.9, "reward_scale": 2.0, "target_noise": 0.0, "target_noise_clip": 0.0}
NET = stub(
    actor=lambda s: SAID[s.observation],
    critic=lambda s, a: CRITICS[s.observation] * a[..., None],
    target={
        "actor": lambda s: SAID[s.observation],
        "critic": lambda s, a: COPIES[s.observation] * a[..., None],
    },
    hyper=HYPER | {"actor_weight": 0.3, "critic_weight": 0.7},
    key=lambda: KEY,
)


def test_the_target_falls_with_the_distance_to_the_next_action_of_the_data():
    apart = ((SAID[N:] - X.extras["next_action"]) / 2) ** 2
    assert X.truncated.any()  # there the data has no next action
    following = (COPIES[N:] * SAID[N:, None]).min(-1) - 0.7 * np.where(X.truncated, 0, apart)
    target = 2 * X.reward + 0.9 * ~X.terminated * following
    q = CRITICS[:N] * X.action[:, None]
    expected = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(LOSSES["critic_loss"](NET, X).value, expected, rtol=1e-4)


def test_the_policy_climbs_the_least_value_and_stays_near_the_data():
    q = (CRITICS[:N] * SAID[:N, None]).min(-1)
    apart = ((SAID[:N] - X.action) / 2) ** 2
    output = LOSSES["actor_loss"](NET, X)
    expected = 0.3 * apart - q / np.abs(q).mean()
    np.testing.assert_allclose(output.value, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.metrics["distance"], apart, rtol=1e-4)


def test_an_environment_beside_the_data_is_refused():
    with pytest.raises(UserError, match=r"^rebrac learns from a dataset alone, since it needs"):
        rebrac.rebrac.agent(ENV, replace(rebrac.Config(), {"num_envs": 4}))
