"""FQL: its losses against tables, and both ends of alpha."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.diffusion import fql
from jaxrl.core.settings import Static, replace
from jaxrl.diffusion import Flow
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

N = 32
RNG = np.random.default_rng(2)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
CONFIG = replace(fql.Config(), {"steps": 4, "hidden": (8,)})
LOSSES = losses_of(fql.recipe(bandit.ENV, Static(CONFIG)))


def flow(s, noisy, level):
    return 0.3 * noisy + 0.01 * s.observation[:, None] + 0.1 * level[..., None]


def actor(s, noise):
    return 0.8 * noise - 0.01 * s.observation[:, None]


def critic(table):
    return lambda s, a: table[s.observation] + a * np.float32([2.0, -1.0])


def net(scale=1.0, **hyper):
    return stub(
        flow=lambda *given: scale * flow(*given),
        actor=actor,
        critic=critic(CRITICS),
        target={"critic": critic(COPIES)},
        key=bandit.key,
        hyper=hyper,
    )


def noise():
    return np.asarray(jax.random.normal(bandit.key(), (N, 1)))


def test_the_flow_is_matched_to_the_data():
    x = bandit.transitions(N)
    noised = Flow().add_noise(bandit.key(), jnp.asarray(x.action))
    said = flow(x.timestep, noised.noisy, noised.level)
    expected = np.square(said - noised.target).mean(-1)
    np.testing.assert_allclose(LOSSES["flow_loss"](net(), x), expected, rtol=1e-4)


def test_the_critics_learn_from_the_one_step_policy():
    x = bandit.transitions(N)
    output = LOSSES["critic_loss"](net(discount=0.9, reward_scale=2.0), x)
    action = np.clip(0.8 * noise() - 0.01 * (N + np.arange(N))[:, None], -1, 1)
    after = (COPIES[N:] + action * [2.0, -1.0]).mean(-1)
    target = 2 * x.reward + 0.9 * ~x.terminated * after
    error = CRITICS[:N] + x.action * [2.0, -1.0] - target[:, None]
    np.testing.assert_allclose(output.value, 0.5 * (error**2).sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_policy_climbs_near_the_flow(normalize):
    x, at = bandit.transitions(N), np.arange(N)[:, None]
    config = replace(CONFIG, {"normalize_q": normalize})
    loss = losses_of(fql.recipe(bandit.ENV, Static(config)))["actor_loss"](net(alpha=3.0), x)
    carried = noise()
    for i in range(4):
        carried = carried + (0.3 * carried + 0.01 * at + 0.1 * i / 4) / 4
    action = 0.8 * noise() - 0.01 * at
    distance = np.square(action - np.clip(carried, -1, 1))[:, 0]
    q = (CRITICS[:N] + np.clip(action, -1, 1) * [2.0, -1.0]).mean(-1)
    expected = 3 * distance - q / (np.abs(q).mean() if normalize else 1)
    np.testing.assert_allclose(loss.value, expected, rtol=1e-3, atol=1e-4)
    loss = lambda scale: LOSSES["actor_loss"](net(scale, alpha=3.0), x).value.sum()
    assert jax.grad(loss)(1.0) == 0  # no gradient flows through the flow


@pytest.mark.slow
def test_it_keeps_both_modes_or_climbs():
    """A large alpha makes it a clone of two modes in one step; with a small one it climbs."""
    agent = fql.fql.agent(bandit.ENV, replace(fql.Config(), {"hidden": (32, 32), "steps": 5}))

    def rising(key, n):
        action, _ = bandit.two_modes(key, n)
        return action, action

    rates = {"optimizer.learning_rate": 3e-3, "target.rate": 0.02}
    train = bandit.trainer(agent, rising, 1000)
    left, right, elsewhere = bandit.shares(bandit.actions(agent, train(**rates, alpha=100.0)))

    assert 0.25 < left < 0.6 and 0.25 < right < 0.6 and elsewhere < 0.4
    assert bandit.actions(agent, train(**rates, alpha=0.1)).mean() > 0.6
