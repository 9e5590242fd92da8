"""The losses of DDPG, against NumPy."""

import numpy as np

from jaxrl import envs
from jaxrl.algorithms.continuous_control import ddpg
from jaxrl.core.settings import Static
from tests.kit.stub import losses_of, stub, transitions

N = 64
RNG = np.random.default_rng(2)
SAID = RNG.uniform(-2, 2, 2 * N).astype(np.float32)
CRITIC, COPY = RNG.normal(size=(2, 2 * N, 1)).astype(np.float32)
LOSSES = losses_of(ddpg.recipe(envs.make("pendulum"), Static(ddpg.Config())))


def stub_net():
    return stub(
        actor=lambda s: SAID[s.observation],
        critic=lambda s, a: CRITIC[s.observation] + 3 * np.asarray(a)[..., None],
        target={
            "actor": lambda s: -SAID[s.observation],
            "critic": lambda s, a: COPY[s.observation] * a[..., None],
        },
        hyper={"discount": 0.9},
    )


def test_the_critic_regresses_on_the_copies_value_of_the_copys_action():
    x = transitions(N, actions=0)
    output = LOSSES["critic_loss"](stub_net(), x)
    loss, report = output.value, output.metrics
    # Terminated steps are worth their reward; truncated ones go on.
    target = x.reward + 0.9 * ~x.terminated * COPY[N:, 0] * -SAID[N:]
    q = CRITIC[:N, 0] + 3 * x.action
    np.testing.assert_allclose(loss, 0.5 * (q - target) ** 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report["value"], q, rtol=1e-5)
    assert x.truncated.any() and x.terminated.any()


def test_the_policy_climbs_the_value_of_its_action():
    loss = LOSSES["actor_loss"](stub_net(), transitions(N, actions=0))
    np.testing.assert_allclose(loss, -(CRITIC[:N, 0] + 3 * SAID[:N]), rtol=1e-5)
