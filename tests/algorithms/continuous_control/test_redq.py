"""REDQ: its target against NumPy, and what the policy climbs."""

import types

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control import redq
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")  # actions in [-2, 2]
N, MEMBERS = 32, 5
RNG = np.random.default_rng(4)
DRAWN, LOG_PROB = RNG.normal(size=(2, 2 * N)).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, MEMBERS)).astype(np.float32)
IN_HALF_WIDTHS = LOG_PROB + np.log(2.0)
CONFIG = replace(redq.Config(), {"num_critics": MEMBERS, "subset": 2})
LOSSES = losses_of(redq.recipe(ENV, Static(CONFIG)))


def stub_net(seed=0):
    def policy(s):
        said = DRAWN[s.observation], LOG_PROB[s.observation]
        return types.SimpleNamespace(sample_and_log_prob=lambda seed: said)

    return stub(
        actor=policy,
        critic=lambda s, a: CRITICS[s.observation] + np.asarray(a)[..., None],
        temperature=lambda: np.float32(0.3),
        target={"critic": lambda s, a: COPIES[s.observation] + np.asarray(a)[..., None]},
        hyper={"discount": 0.9},
        key=lambda name="": random.key(seed),
    )


def test_the_least_of_a_random_few_copies_is_the_target():
    x, seen = transitions(N, actions=0), set()
    q = CRITICS[:N] + x.action[:, None]
    for seed in range(12):
        chosen = jax.random.choice(random.key(seed), MEMBERS, (2,), replace=False)
        following = (COPIES[N:, np.asarray(chosen)] + DRAWN[N:, None]).min(-1)
        target = x.reward + 0.9 * ~x.terminated * (following - 0.3 * IN_HALF_WIDTHS[N:])
        loss = LOSSES["critic_loss"](stub_net(seed), x).value
        expected = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
        seen.add(tuple(sorted(chosen.tolist())))
    assert all(a < b for a, b in seen) and len(seen) > 3


def test_the_policy_climbs_the_mean_of_all():
    loss = LOSSES["actor_loss"](stub_net(), transitions(N, actions=0)).value
    value = (CRITICS[:N] + DRAWN[:N, None]).mean(-1)
    np.testing.assert_allclose(loss, 0.3 * IN_HALF_WIDTHS[:N] - value, rtol=1e-4, atol=1e-5)


def test_policy_and_temperature_wait_for_the_critics_updates():
    """Losses descend by name: G critic updates, one of the others, and targets each time."""
    told = []

    class Net:
        def descend(self, loss, batch, every=1):
            told.append((loss.name, every))
            return self

        def update_targets(self):
            told.append("targets")
            return self

    redq.recipe(ENV, Static(redq.Config())).update(Net(), None)  # type: ignore[arg-type]
    assert told == [("critic_loss", 1), ("actor_loss", 20), ("temperature_loss", 20), "targets"]


def test_a_subset_is_no_larger_than_the_ensemble():
    with pytest.raises(UserError, match=r"subset is 3; it must be at most num_critics=2"):
        redq.redq.agent(ENV, replace(CONFIG, {"num_critics": 2, "subset": 3}))
