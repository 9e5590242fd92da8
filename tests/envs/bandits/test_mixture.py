"""The mixture: its rewards and density against NumPy, and the expert's draws."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError

POINTS = np.random.default_rng(0).uniform(-1, 1, (50, 2)).astype(np.float32)
ANGLE = 2 * np.pi * np.arange(4) / 4
CENTERS = 0.5 * np.stack([np.cos(ANGLE), np.sin(ANGLE)], -1)


def make(reward):
    return envs.make("mixture", modes=4, reward=reward, radius=0.5, spread=0.1, strength=3.0)


@pytest.mark.parametrize("reward", ["slope", "modes"])
def test_rewards_and_density(reward):
    env = make(reward)
    state, first = env.reset(jax.random.key(0), env.params)
    step = lambda action: env.step(jax.random.key(1), state, action, env.params)[1]
    found = jax.vmap(step)(POINTS)
    away = np.square(POINTS[:, None] - CENTERS).sum(-1)
    nearest = away.argmin(-1)
    paid = 3 * POINTS[:, 0] if reward == "slope" else 3.0 * (nearest % 4 < 2)
    np.testing.assert_allclose(found.reward, paid, rtol=1e-5)
    assert found.terminated.all() and not first.done
    np.testing.assert_array_equal(found.metrics["on_mode"], np.sqrt(away.min(-1)) < 0.3)
    density = np.exp(-away / 2 / 0.1**2).mean(-1) / (2 * np.pi * 0.1**2)
    given = jax.vmap(lambda a: env.log_density(a, env.params))(POINTS)
    np.testing.assert_allclose(given, np.log(density), rtol=1e-4, atol=1e-4)
    # A state that stands for a time step pays the same.
    other = env.step(jax.random.key(2), env.state_of(first), POINTS[0], env.params)[1]
    np.testing.assert_allclose(other.reward, paid[0], rtol=1e-5)


def test_the_expert_draws_from_the_density():
    env = make("slope")
    keys = jax.random.split(jax.random.key(0), 4000)
    state, _ = jax.jit(jax.vmap(env.reset, (0, None)))(keys, env.params)
    drawn = np.asarray(state.demonstration)
    away = drawn[:, None] - CENTERS
    nearest = np.square(away).sum(-1).argmin(-1)
    np.testing.assert_allclose(np.bincount(nearest, minlength=4) / 4000, 0.25, atol=0.03)
    own = np.take_along_axis(away, nearest[:, None, None], 1)[:, 0]
    np.testing.assert_allclose(own.std(0), 0.1, atol=0.005)
    np.testing.assert_allclose(own.mean(0), 0, atol=0.005)


@pytest.mark.slow
def test_the_environment_keeps_every_rule():
    envs.check_environment(envs.make("mixture", reward="modes"), steps=16)


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"modes": 0}, "modes of 'mixture' is 0"), ({"reward": "love"}, "it must be 'slope' or")],
)
def test_bad_structure_is_one_sentence(settings, match):
    with pytest.raises(UserError, match=match):
        envs.make("mixture", **settings)
