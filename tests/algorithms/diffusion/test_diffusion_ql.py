"""Diffusion-QL: its losses against tables, how it chooses, and both ends of eta."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import diffusion_ql
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.spaces import Box
from jaxrl.diffusion import Hooks, VariancePreserving
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

N = 32
RNG = np.random.default_rng(2)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
CONFIG = replace(diffusion_ql.Config(), {"levels": 3, "candidates": 4, "backup_candidates": 2})
RECIPE = diffusion_ql.recipe(bandit.ENV, Static(CONFIG))
LOSSES = losses_of(RECIPE)
PROCESS, WITHIN = VariancePreserving(3), Hooks(bound=1.0)


def actor(s, noisy, level):
    return 0.3 * noisy + 0.01 * s.observation[:, None] + 0.1 * level[..., None]


def critic(table):
    """Q rises with the action in the first critic, and falls in the second."""
    return lambda s, a: table[s.observation] + a * np.float32([2.0, -1.0])


def sample_actions(observation, key, *more):
    """Actions of the policy `actor` at time steps with these observations."""
    predict = lambda noisy, level: actor(stub(observation=observation), noisy, level)
    return PROCESS.sample(key, predict, (*more, N, 1), hooks=WITHIN)


def test_the_critics_learn_from_the_averaged_policy():
    x = bandit.transitions(N)
    net = stub(
        critic=critic(CRITICS),
        target={"critic": critic(COPIES), "actor": actor},
        key=bandit.key,
        hyper={"discount": 0.9, "reward_scale": 2.0},
    )
    output = LOSSES["critic_loss"](net, x)
    action = np.asarray(sample_actions(N + np.arange(N), bandit.key(), 2))
    after = (COPIES[N:] + action * [2.0, -1.0]).max(0).min(-1)
    target = 2 * x.reward + 0.9 * ~x.terminated * after
    error = CRITICS[:N] + x.action * [2.0, -1.0] - target[:, None]
    np.testing.assert_allclose(output.value, 0.5 * (error**2).sum(-1), rtol=1e-3, atol=1e-4)


def test_the_policy_denoises_and_climbs_one_critic():
    x = bandit.transitions(N)
    losses = []
    for eta in (0.0, 0.5):
        net = stub(critic=critic(CRITICS), actor=actor, key=bandit.key, hyper={"eta": eta})
        losses.append(LOSSES["actor_loss"](net, x).value)
    noised = PROCESS.add_noise(bandit.key("noise"), jnp.asarray(x.action))
    said = actor(x.timestep, noised.noisy, noised.level)
    cloning = np.square(said - noised.target).mean(-1)
    np.testing.assert_allclose(losses[0], cloning, rtol=1e-4)
    action = np.asarray(sample_actions(np.arange(N), bandit.key("sample")))
    q = CRITICS[:N] + action * [2.0, -1.0]
    either = [-q[:, i] / np.abs(q[:, 1 - i]).mean() for i in (0, 1)]
    found = (losses[1] - cloning) / 0.5
    assert any(np.allclose(found, one, rtol=1e-3, atol=1e-4) for one in either)


def test_an_action_is_chosen_of_several():
    n = 4000
    spread = lambda s, noisy, level: jnp.zeros_like(noisy)
    scaled = lambda s, a: jnp.broadcast_to(5 * a, (n, 2))
    net = stub(actor=spread, target={"critic": scaled})
    seen = stub(reward=np.zeros(n))
    act = lambda greedy: np.asarray(RECIPE.act(net, seen, (), random.key(3), greedy)[0])[:, 0]
    sample_key, _ = jax.random.split(random.key(3))
    predict = lambda noisy, level: jnp.zeros_like(noisy)
    candidates = np.asarray(PROCESS.sample(sample_key, predict, (4, n, 1), hooks=WITHIN))[..., 0]
    np.testing.assert_allclose(act(True), candidates.max(0), atol=1e-6)
    weights = np.exp(5 * candidates)
    expected = (weights * candidates).sum(0) / weights.sum(0)
    assert abs(act(False).mean() - expected.mean()) < 0.02
    assert abs(candidates.mean() - expected.mean()) > 0.1


@pytest.mark.slow
def test_it_prefers_the_better_of_two_modes():
    """The gradient of Q through the steps moves samples to the mode that earns more, and cloning
    keeps them at a mode; a clone has as many samples at either one (tests of IDQL)."""
    config = replace(diffusion_ql.Config(), {"hidden": (32, 32), "candidates": 1})
    agent = diffusion_ql.diffusion_ql.agent(bandit.ENV, config)
    rates = {"actor.learning_rate": 3e-3, "critic.learning_rate": 3e-3}
    rates |= {"target.rate": 0.02, "average.rate": 0.02}
    state = bandit.trainer(agent, bandit.two_modes, 1200)(**rates)
    left, right, _ = bandit.shares(bandit.actions(agent, state))
    assert right > 0.5 and left < 0.15


def test_actions_without_bounds_are_refused():
    env = dataclasses.replace(envs.make("pendulum"), action_space=Box(-np.inf, np.inf, (1,)))
    with pytest.raises(UserError, match=r"diffusion_ql cannot act in Box.*needs a bounded Box"):
        diffusion_ql.diffusion_ql.agent(env, CONFIG)
