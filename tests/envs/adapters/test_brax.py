"""The adapter of brax against brax itself."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.envs.check_structure import check_structure
from tests.envs.adapters.training import trains

pytest.importorskip("brax", reason="brax is not installed (the suites extra)")
theirs = pytest.importorskip(
    "brax.envs", reason="brax.envs cannot be imported", exc_type=ImportError
)


def test_it_is_an_environment():
    # Everything but the physics, whose steps are compared below and take longest to compile.
    envs.check_environment(envs.make("brax/fast"), 8)
    check_structure(envs.make("brax/inverted_pendulum"))


def test_the_same_keys_give_what_brax_gives():
    env = envs.make("brax/inverted_pendulum")
    raw_env = theirs.create("inverted_pendulum", episode_length=None, auto_reset=False)
    first, *rest = jax.random.split(jax.random.key(2), 31)
    state, timestep = jax.jit(env.reset)(first, env.params)
    raw = jax.jit(raw_env.reset)(first)
    np.testing.assert_array_equal(timestep.observation, raw.obs)
    step, raw_step = jax.jit(env.step), jax.jit(raw_env.step)
    for key in rest:
        action = spaces.sample(env.action_space, key)
        state, timestep = step(key, state, action, env.params)
        raw = raw_step(raw, action)
        np.testing.assert_allclose(timestep.observation, raw.obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(timestep.reward, raw.reward, rtol=1e-5)
        assert bool(timestep.terminated) == bool(raw.done) and not timestep.truncated
        if raw.done:
            break
    assert raw.done  # with random actions the pole falls within 30 steps


def test_our_clock_truncates():
    env = envs.make("brax/fast", episode_length=3)
    assert env.max_steps == 3 and envs.make("brax/fast").max_steps == 1000
    state, _ = env.reset(jax.random.key(0), ())
    step = jax.jit(env.step)
    ends = []
    for key in jax.random.split(jax.random.key(1), 3):
        action = spaces.sample(env.action_space, key)
        state, timestep = step(key, state, action, ())
        ends.append((bool(timestep.terminated), bool(timestep.truncated)))
    assert ends == [(False, False), (False, False), (False, True)]


def test_actions_are_clipped_to_the_actuators():
    env = envs.make("brax/reacher")  # its reward charges for the action itself
    state, _ = env.reset(jax.random.key(0), ())
    step = jax.jit(env.step)
    high = np.asarray(spaces.bounds(env.action_space)[1])
    _, at = step(jax.random.key(0), state, high, ())
    _, beyond = step(jax.random.key(0), state, 10 * high, ())
    np.testing.assert_array_equal(at.observation, beyond.observation)
    assert at.reward == beyond.reward


def test_an_unknown_backend_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'spring'"):
        envs.make("brax/fast", backend="sprig")


def test_an_agent_trains_in_it():
    trains(envs.make("brax/fast"))
