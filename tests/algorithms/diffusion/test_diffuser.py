"""Diffuser: what its trajectories hold, its losses, and where its plans begin and end."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import diffusion, envs
from jaxrl.algorithms.diffusion import diffuser
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import TimeStep, Transition
from jaxrl.diffusion import VariancePreserving
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

ENV = envs.make("point_maze", dt=0.05)
SETTINGS = {"horizon": 4, "execute": 2, "levels": 3, "width": 8, "blocks": 1, "guided": True}
CONFIG = replace(diffuser.Config(), SETTINGS)
RECIPE = diffuser.recipe(ENV, Static(CONFIG))
LOSSES = losses_of(RECIPE)
PROCESS = VariancePreserving(3, "cosine", prediction="clean", axes=2)
KNOWN = np.zeros((4, 8), bool)
KNOWN[0, :4] = KNOWN[3, 6:] = True


def window():
    """Two windows [4, 2]; the episode of the first ends with its second step."""
    rng = np.random.default_rng(0)
    no, ended = np.zeros((4, 2), bool), np.zeros((4, 2), bool)
    ended[1, 0] = True
    draw = lambda *shape: rng.normal(size=(4, 2, *shape)).astype(np.float32)
    before = TimeStep(draw(4), draw(), no, no, no, goal=draw(2))
    after = TimeStep(draw(4), draw(), ended, no, no, goal=draw(2))
    extras = {"achieved": draw(2)}
    return jax.tree.map(jnp.asarray, Transition(before, draw(2), after, (), extras))


def trajectories(x):
    """Trajectories [2, 4, 8], by NumPy."""
    parts = [np.asarray(part) for part in (x.observation, x.action, x.extras["achieved"])]
    both = np.concatenate(parts, -1).swapaxes(0, 1).copy()
    both[0, 2:] = both[0, 1]
    return both


def test_the_losses():
    x = window()
    clean = trajectories(x)
    noised = PROCESS.add_noise(bandit.key(), jnp.asarray(clean))
    noisy = np.where(KNOWN, clean, noised.noisy)
    denoiser = lambda noisy, level: 0.5 * noisy + level[:, None, None]
    guide = lambda noisy, level: noisy[..., :1] + level[:, None, None]
    net = stub(denoiser=denoiser, guide=guide, key=bandit.key, hyper={"discount": 0.5})
    error = np.where(KNOWN, 0, np.asarray(denoiser(noisy, noised.level)) - clean)
    expected = np.broadcast_to((error**2).mean((1, 2)), (4, 2))
    np.testing.assert_allclose(LOSSES["denoiser_loss"](net, x), expected, rtol=1e-5)
    reward = np.asarray(x.reward)
    earned = [reward[0, 0] + 0.5 * reward[1, 0], (0.5 ** np.arange(4) * reward[:, 1]).sum()]
    said = (noisy[..., 0] + np.asarray(noised.level)[:, None]).mean(-1)
    expected = np.broadcast_to(0.5 * (said - earned) ** 2, (4, 2))
    np.testing.assert_allclose(LOSSES["guide_loss"](net, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_plans_are_guided_and_keep_what_is_known(weight):
    """The denoiser is told where plans begin and end at each step; the guide moves their means."""
    inputs = []

    def denoiser(noisy, level):
        inputs.append(noisy)
        return 0.3 * noisy + 0.1

    n = 3
    no = jnp.zeros(n, bool)
    goal = jnp.arange(6.0).reshape(n, 2)
    observation = 10 + jnp.arange(12.0).reshape(n, 4)
    seen = TimeStep(observation, jnp.zeros(n), no, no, ~no, goal=goal)
    net = stub(
        target={"denoiser": denoiser},
        guide=lambda noisy, level: 4 * noisy[..., 4:5],  # of the first action
        hyper={"guidance": np.float32(weight)},
    )
    with jax.disable_jit():  # so that what the denoiser is given can be looked at
        action, memory, _ = RECIPE.act(net, seen, RECIPE.memory(n), random.key(3), True)
    assert len(inputs) == 3
    for noisy in inputs:
        np.testing.assert_array_equal(noisy[:, 0, :4], observation)
        np.testing.assert_array_equal(noisy[:, -1, 6:], goal)
    # The same chain by NumPy, with the samplers' keys.
    bars = PROCESS.alpha_bars()
    x = inputs[0]
    start_key, key = jax.random.split(random.key(3))
    told = jnp.zeros((n, 4, 8)).at[:, 0, :4].set(observation).at[:, -1, 6:].set(goal)
    np.testing.assert_array_equal(
        x, jnp.where(KNOWN, told, jax.random.normal(start_key, told.shape))
    )
    for k, step_key in zip((3, 2, 1), jax.random.split(key, 3), strict=True):
        clean = 0.3 * x + 0.1
        mean, variance = diffusion.denoising_posterior(x, clean, bars[k], bars[k - 1])
        mean = mean.at[..., 4].add(weight * variance * 4 / 4)  # the mean over 4 steps
        noise = jax.random.normal(jax.random.split(step_key)[1], x.shape)
        x = jnp.where(KNOWN, told, mean + jnp.sqrt(variance) * noise)
    np.testing.assert_allclose(memory.steps, jnp.clip(x[..., 4:6], -1, 1), atol=2e-4)
    np.testing.assert_allclose(action, memory.steps[:, 0], atol=1e-6)


def test_achieved_goals_are_of_raw_observations():
    config = replace(CONFIG, {"data.size": 600, "data.batch_size": 8})
    source = diffuser.source(ENV, config)
    state = source.init(random.key(0), {}, None)
    x = state.transitions.value
    np.testing.assert_array_equal(x.extras["achieved"], x.observation[..., :2])
    # The demonstrations arrive at their goals.
    ends = x.next_timestep.terminated[:, 0]
    after = x.next_timestep.observation[ends, 0, :2]
    assert ends.sum() > 5
    distance = np.linalg.norm(after - x.timestep.goal[ends, 0], axis=-1)
    assert (distance < 0.46).all()


def test_goals_and_returns_are_optional():
    plain = diffuser.recipe(envs.make("pendulum"), Static(replace(CONFIG, {"guided": False})))
    assert set(plain.parts) == {"denoiser"} and not plain.needs
    assert dataclasses.replace(plain).memory(2).past.shape == (2, 0, 3)
