"""PG-Rainbow's value, advantages and quantiles, with tables as networks, against NumPy."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient import pg_rainbow as pg
from jaxrl.algorithms.policy_gradient import ppo
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.kit.stub import huber, losses_of, masked, stub, transitions

N, A, K, ENV = 48, 2, 3, envs.make("cartpole")
RNG = np.random.default_rng(1)
TABLE, TARGET = RNG.normal(size=(2, 2 * N, A, 2)).astype(np.float32)
VALUE = RNG.normal(size=2 * N).astype(np.float32)
WEIGHT = RNG.normal(size=A * K).astype(np.float32)
MIDDLES = (np.arange(K) + 0.5) / K
SIZES = {"num_quantiles": K, "num_fractions": 5, "num_target_fractions": 4}


def quantiles(table):
    """Return the quantiles of uniform returns, from a to a + b."""
    return lambda s, tau: (
        jnp.asarray(table)[s.observation][..., :1]
        + jnp.asarray(table)[s.observation][..., 1:] * tau[..., None, :]
    )


def expected_value(observation):
    """Return f(V' q) for a linear f."""
    q = TABLE[observation][..., :1] + TABLE[observation][..., 1:] * MIDDLES
    return VALUE[observation] * (q.reshape(*observation.shape, -1) @ WEIGHT)


def net_of(**known):
    keys = {name: random.key(i) for i, name in enumerate(("evaluate", "predict"))}
    hyper = {"discount": 0.9, "gae_lambda": 0.8, "huber": 0.5, "passes.target_kl": 0.02}
    known = {
        "q": quantiles(TABLE),
        "actor_critic": lambda s, memory: (None, jnp.asarray(VALUE)[s.observation], memory),
        "distillation": lambda features: features @ WEIGHT,
        "key": keys.__getitem__,
    } | known
    return stub(target={"q": quantiles(TARGET)}, hyper=hyper, **known)


def recipe(**changes):
    config = settings.replace(pg.Config(), SIZES | changes)
    return pg.recipe(ENV, settings.Static(config))


def test_the_value_combines_critic_and_quantiles_but_does_not_train_the_quantiles():
    x = transitions(N).timestep
    np.testing.assert_allclose(
        pg.policy_and_value(net_of(), x, K)[1], expected_value(x.observation), rtol=1e-4
    )

    def total(table, value):
        net = net_of(
            q=lambda s, tau: quantiles(table)(s, tau), actor_critic=lambda s, m: (None, value, m)
        )
        return pg.policy_and_value(net, x, K)[1].sum()

    of_table, of_value = jax.grad(total, (0, 1))(jnp.asarray(TABLE), jnp.asarray(VALUE[:N]))
    assert not of_table.any() and of_value.all()


def test_advantages_use_the_combined_value():
    t, b = 6, 8
    number = np.arange(2 * t * b).reshape(2, t, b)
    ended = RNG.random((t, b)) < 0.2
    no, reward = np.zeros_like(ended), RNG.normal(size=(t, b)).astype(np.float32)
    at = lambda i, r, end: TimeStep(number[i], r, end, no, no)
    x = Transition(at(0, reward, no), no, at(1, reward, ended), (), {"log_prob": reward})
    seen = []

    def epochs(settings, data, step, max_drift=None):
        seen.append(data.transitions if isinstance(data, Batch) else data.x)
        return net

    net = net_of(epochs=epochs, report=lambda **metrics: net, learning_rate=lambda part: 0.0)
    recipe().update(net, Batch(x, jnp.float32(0)))
    assert [type(x).__name__ for x in seen] == ["Transition", "Sample"]  # quantiles first
    value, following = expected_value(number[0]), expected_value(number[1])
    advantage, later = np.zeros((t, b)), np.zeros(b)
    for i in reversed(range(t)):
        error = reward[i] + 0.9 * ~ended[i] * following[i] - value[i]
        later = error + 0.9 * 0.8 * ~ended[i] * later
        advantage[i] = later
    np.testing.assert_allclose(seen[1].advantage, advantage, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(seen[1].target, advantage + value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
def test_the_quantile_loss_bootstraps_from_the_target_networks_best_action(legal):
    x, rows = transitions(N, A), np.arange(N)
    x = masked(x, A) if legal else x
    loss = losses_of(recipe())["quantile_loss"](net_of(), x)
    at = lambda table, tau: table[..., :1] + table[..., 1:] * tau[:, None, :]
    mean = TARGET[N:, :, 0] + TARGET[N:, :, 1] / 2
    best = (np.where(x.next_timestep.legal_actions, mean, -np.inf) if legal else mean).argmax(-1)
    following, tau = (
        np.asarray(jax.random.uniform(random.key(i), (N, n))) for i, n in enumerate((4, 5))
    )
    keep = 0.9 * ~x.terminated[:, None]  # a truncated step bootstraps
    goal = x.reward[:, None] + keep * at(TARGET[N:], following)[rows, best]
    error = goal[:, None, :] - at(TABLE[:N], tau)[rows, x.action][:, :, None]
    expected = np.abs(tau[:, :, None] - (error < 0)) * huber(error, 0.5) / 0.5
    np.testing.assert_allclose(loss, expected.mean(2).sum(1), rtol=1e-4, atol=1e-5)


def test_the_policy_and_the_combined_value_enter_ppos_objective(monkeypatch):
    fixed = types.SimpleNamespace(x=None)
    monkeypatch.setattr(ppo, "objective", lambda net, x, policy, value: (policy, value))
    x = types.SimpleNamespace(timestep=transitions(N).timestep)
    net = net_of(actor_critic=lambda s, m: (fixed, jnp.asarray(VALUE)[s.observation], m))
    policy, value = losses_of(recipe())["loss"](net, x)
    assert policy is fixed
    np.testing.assert_allclose(value, expected_value(x.timestep.observation), rtol=1e-4)
    assert losses_of(recipe())["loss"].parts == ("actor_critic", "distillation")


def test_memory_is_refused():
    config = dataclasses.replace(pg.Config(), memory=ppo.Memory(recurrent=8))
    with pytest.raises(UserError, match=r"recurrent is 8; .* it must be 0"):
        pg.pg_rainbow(ENV, config)
