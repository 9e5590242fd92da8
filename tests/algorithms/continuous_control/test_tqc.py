"""TQC: the truncated mixture and its quantile regression, against NumPy."""

import types

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control import tqc
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")  # actions in [-2, 2]
N, K, E, DROPPED = 16, 5, 3, 2
RNG = np.random.default_rng(4)
DRAWN, LOG_PROB = RNG.normal(size=(2, 2 * N)).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, K, E)).astype(np.float32)
IN_HALF_WIDTHS = LOG_PROB + np.log(2.0)
CONFIG = replace(tqc.Config(), {"num_critics": E, "num_quantiles": K, "dropped": DROPPED})
LOSSES = losses_of(tqc.recipe(ENV, Static(CONFIG)))


def stub_net():
    def policy(s):
        said = DRAWN[s.observation], LOG_PROB[s.observation]
        return types.SimpleNamespace(sample_and_log_prob=lambda seed: said)

    plus = lambda table: lambda s, a: table[s.observation] + np.asarray(a)[..., None, None]
    return stub(
        actor=policy,
        critic=plus(CRITICS),
        temperature=lambda: np.float32(0.3),
        target={"critic": plus(COPIES)},
        hyper={"discount": 0.9},
        key=lambda: None,
    )


def test_each_critic_regresses_on_the_pool_without_its_largest():
    x = transitions(N, actions=0)
    output = LOSSES["critic_loss"](stub_net(), x)
    loss, report = output.value, output.metrics
    expected = np.zeros(N)
    for b in range(N):
        pool = np.sort((COPIES[N + b] + DRAWN[N + b]).ravel())[: (K - DROPPED) * E]
        soft = pool - 0.3 * IN_HALF_WIDTHS[N + b]
        target = x.reward[b] + 0.9 * (not x.terminated[b]) * soft
        for e in range(E):
            for k in range(K):
                u = target - (CRITICS[b, k, e] + x.action[b])
                huber = np.where(np.abs(u) > 1, np.abs(u) - 0.5, 0.5 * u**2)
                expected[b] += (np.abs((k + 0.5) / K - (u < 0)) * huber).mean() / K
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    value = (CRITICS[:N] + x.action[:, None, None]).mean((1, 2))
    np.testing.assert_allclose(report["value"], value, rtol=1e-4, atol=1e-6)


def test_the_policy_climbs_the_mean_of_all_quantiles():
    loss = LOSSES["actor_loss"](stub_net(), transitions(N, actions=0)).value
    value = (CRITICS[:N] + DRAWN[:N, None, None]).mean((1, 2))
    np.testing.assert_allclose(loss, 0.3 * IN_HALF_WIDTHS[:N] - value, rtol=1e-4, atol=1e-5)


def test_some_quantile_is_left():
    with pytest.raises(UserError, match=r"dropped is 5; it must be less than num_quantiles=5"):
        tqc.tqc.agent(ENV, replace(CONFIG, {"dropped": 5}))
