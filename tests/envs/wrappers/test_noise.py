"""Noise has the given distribution and changes nothing else."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.envs.wrappers import action_noise, observation_noise, random_actions
from tests.envs.wrappers import environments
from tests.envs.wrappers.environments import correlation, timesteps_of

N = 8000


def test_observation_noise_has_its_scale_in_every_component():
    walk = environments.walk(observe="vector")
    env = observation_noise(walk, (0.5, 2.0))
    seen = timesteps_of(env, jnp.zeros(N, jnp.int32)).observation
    noise = seen - timesteps_of(walk, jnp.zeros(N, jnp.int32)).observation
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.08)
    np.testing.assert_allclose(noise.std(0), [0.5, 2.0], rtol=0.04)
    assert np.abs(correlation(noise, 1)).max() < 0.05
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.05
    assert noise[0].any()  # also in the observation of the reset
    still = timesteps_of(env, jnp.zeros(N, jnp.int32), observation_noise=np.zeros(2, np.float32))
    np.testing.assert_array_equal(seen - noise, still.observation)


def test_observation_noise_is_drawn_from_its_key():
    env = observation_noise(environments.walk(observe="vector"), 0.5)

    @jax.jit
    def both(key):
        noise_key, _ = jax.random.split(key)
        drawn = jax.random.normal(jax.random.split(noise_key, 1)[0], (2,))
        return env.reset(key, env.params)[1].observation, 0.5 * drawn

    np.testing.assert_allclose(*both(random.key(3)), rtol=1e-6)


def test_pixels_are_rounded_and_clipped_and_indices_are_left_alone():
    walk = environments.walk()
    scale = {"image": 40.0, "kind": 1.0, "lit": 1.0, "place": np.float32([0.0]), "two": 9.0}
    env = observation_noise(walk, scale)
    actions = jnp.ones(40, jnp.int32)
    seen, true = timesteps_of(env, actions).observation, timesteps_of(walk, actions).observation
    for leaf in ("kind", "lit", "place", "two"):
        np.testing.assert_array_equal(seen[leaf], true[leaf])
    assert seen["image"].dtype == np.uint8
    dark = seen["image"][true["image"] == 0].astype(float)
    assert abs((dark == 0).mean() - 0.5) < 0.1  # clipped, not wrapped around
    assert abs(dark[dark > 0].mean() - 40 * np.sqrt(2 / np.pi)) < 5
    bright = seen["image"][true["image"] == 255]
    assert bright.min() > 100 and (bright < 255).any()


def test_action_noise_is_a_stationary_ar1_process():
    env = action_noise(environments.arm(), (0.5, 2.0), correlation=0.8)
    actions = np.tile(np.float32([0.25, 1.0]), (N, 1))
    noise = timesteps_of(env, actions).observation[1:] - actions
    np.testing.assert_allclose(noise.std(0), [0.5, 2.0], rtol=0.08)
    np.testing.assert_allclose(correlation(noise, 1), 0.8, atol=0.03)
    np.testing.assert_allclose(correlation(noise, 2), 0.64, atol=0.05)
    white = timesteps_of(env, actions, action_noise_correlation=0.0).observation[1:]
    assert np.abs(correlation(white, 1)).max() < 0.04
    constant = timesteps_of(env, actions, action_noise_correlation=1.0).observation[1:]
    np.testing.assert_allclose(constant, constant[:1].repeat(N, 0))
    assert np.abs(constant[0] - actions[0]).min() > 0

    # Stationary from the first step on.
    params = jax.tree.map(jnp.asarray, env.params)
    starts = jax.vmap(
        lambda seed: environments.play(env, actions[:1], params, seed)[1].observation[1]
    )
    first = np.asarray(jax.jit(starts)(jnp.arange(2000))) - actions[0]
    np.testing.assert_allclose(first.std(0), [0.5, 2.0], rtol=0.06)


def test_random_actions_are_legal_and_have_their_probability():
    env = random_actions(environments.walk(legal=True, observe="vector"), 0.3)
    chosen = jnp.zeros(N, jnp.int32)
    timestep = timesteps_of(env, chosen)
    played, legal = timestep.cost[1:].astype(int), timestep.legal_actions[:-1]
    assert legal[np.arange(N), played].all()
    even, odd = played[legal[:, 2]], played[~legal[:, 2]]
    np.testing.assert_allclose(
        np.bincount(even, minlength=3) / len(even), [0.8, 0.1, 0.1], atol=0.02
    )
    np.testing.assert_allclose(np.bincount(odd, minlength=3) / len(odd), [0.85, 0.15, 0], atol=0.02)
    none = timesteps_of(env, chosen, random_action_probability=0.0)
    assert not none.cost.any()


def test_random_actions_without_a_mask_are_uniform():
    crane = environments.crane()
    bare = dataclasses.replace(
        crane,
        reset=lambda key, params: _without_mask(crane.reset(key, params)),
        step=lambda *arguments: _without_mask(crane.step(*arguments)),
    )
    env = random_actions(bare, 1.0)
    played = timesteps_of(env, jnp.zeros((N, 2), jnp.int32)).observation[1:].astype(int)
    counts = np.zeros((2, 3))
    np.add.at(counts, (played[:, 0], played[:, 1]), 1)
    np.testing.assert_allclose(counts / N, 1 / 6, atol=0.02)


def _without_mask(result):
    return result[0], dataclasses.replace(result[1], legal_actions=None)
