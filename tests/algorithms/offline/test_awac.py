"""AWAC: its losses against NumPy, with tables for networks."""

import types

import numpy as np

from jaxrl import envs
from jaxrl.algorithms.offline import awac
from jaxrl.core.settings import Static
from tests.kit.stub import losses_of, stub, transitions

N = 64
RNG = np.random.default_rng(3)
DRAWN = RNG.uniform(-3, 3, 2 * N).astype(np.float32)  # some beyond the bounds
LOG_PROB = RNG.normal(size=N).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
X = transitions(N, actions=0)
LOSSES = losses_of(awac.recipe(envs.make("pendulum"), Static(awac.Config())))
NET = stub(
    actor=lambda s: types.SimpleNamespace(
        sample=lambda seed: DRAWN[s.observation], log_prob=lambda a: LOG_PROB + a
    ),
    critic=lambda s, a: CRITICS[s.observation] * a[..., None],
    target={"critic": lambda s, a: COPIES[s.observation] * a[..., None]},
    hyper={"discount": 0.9, "reward_scale": 2.0, "temperature": 0.5},
    key=lambda: None,
)
WITHIN = np.clip(DRAWN, -2, 2)  # the bounds of pendulum's actions


def test_the_critics_evaluate_the_policy():
    output = LOSSES["critic_loss"](NET, X)
    following = (COPIES[N:] * WITHIN[N:, None]).min(-1)
    target = 2 * X.reward + 0.9 * ~X.terminated * following
    q = CRITICS[:N] * X.action[:, None]
    np.testing.assert_allclose(output.value, 0.5 * ((q - target[:, None]) ** 2).sum(-1), rtol=1e-4)


def test_the_policy_imitates_what_is_better_than_its_own_action():
    output = LOSSES["actor_loss"](NET, X)
    least = lambda action: (CRITICS[:N] * action[:, None]).min(-1)
    advantage = least(X.action) - least(WITHIN[:N])
    weight = np.minimum(np.exp(advantage / 0.5), 100)
    assert (weight == 100).any() and (weight < 1).any()
    np.testing.assert_allclose(output.value, -weight * (LOG_PROB + X.action), rtol=1e-4)
    np.testing.assert_allclose(output.metrics["advantage"], advantage, rtol=1e-4, atol=1e-5)
