"""The adapter of Craftax against Craftax itself."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.envs.check_structure import check_structure
from jaxrl.envs.registry import settings
from tests.envs.adapters.training import trains

pytest.importorskip("craftax", reason="Craftax is not installed (the craftax extra)")
from craftax.craftax_env import make_craftax_env_from_name

NAME = "craftax/Craftax-Classic-Symbolic-v1"


@pytest.fixture(autouse=True, scope="module")
def half_precision():
    try:
        jax.jit(lambda x: x.astype(jnp.float16).astype(jnp.float32))(
            jnp.ones(2)
        ).block_until_ready()
    except jax.errors.JaxRuntimeError:
        pytest.skip(
            "Craftax needs half precision, which the flags of tests/conftest.py rule out; "
            "`make suites SUITE=craftax` sets others"
        )


@functools.cache
def compile_env(**options):
    env = envs.make(NAME, **options)
    return env, jax.jit(env.reset), jax.jit(env.step)


@functools.cache
def load():
    theirs = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    return theirs, theirs.default_params


def test_it_is_an_environment():
    envs.check_environment(envs.make(NAME, max_timesteps=8, map_size=32), 8)


@pytest.mark.slow
def test_the_other_games_are_environments():
    check_structure(envs.make("craftax/Craftax-Symbolic-v1"))
    check_structure(envs.make("craftax/Craftax-Classic-Pixels-v1"))


def test_the_same_keys_give_what_craftax_gives():
    env, reset, step = compile_env()
    theirs, params = load()
    first, *rest = jax.random.split(jax.random.key(3), 31)
    state, timestep = reset(first, env.params)
    observation, raw = jax.jit(theirs.reset_env)(first, params)
    raw_step = jax.jit(theirs.step_env)
    np.testing.assert_array_equal(timestep.observation, observation)
    for key in rest:
        action = spaces.sample(env.action_space, jax.random.fold_in(key, 0))
        state, timestep = step(key, state, action, env.params)
        observation, raw, reward, done, _ = raw_step(key, raw, action, params)
        np.testing.assert_allclose(timestep.observation, observation, rtol=1e-6)
        np.testing.assert_allclose(timestep.reward, reward, rtol=1e-6)
        assert bool(timestep.done) == bool(done)
        assert timestep.metrics["achievements"] == raw.achievements.sum()


def test_many_instances_are_stepped_at_once():
    env, reset, step = compile_env()
    keys = jax.random.split(jax.random.key(0), 4)
    states, timesteps = jax.vmap(reset, (0, None))(keys, env.params)
    actions = jnp.arange(4)
    states, timesteps = jax.vmap(step, (0, 0, 0, None))(keys, states, actions, env.params)
    state, _ = reset(keys[2], env.params)
    _, timestep = step(keys[2], state, actions[2], env.params)
    np.testing.assert_allclose(timesteps.observation[2], timestep.observation, rtol=1e-6)


def test_its_clock_truncates_and_death_terminates():
    env, reset, step = compile_env(max_timesteps=12)
    assert (env.max_steps, envs.make(NAME).max_steps) == (12, 10_000)
    state, _ = reset(jax.random.key(0), env.params)
    for time in (11, 12):
        key = jax.random.key(1)
        before = state.replace(timestep=jnp.full_like(state.timestep, time - 1))
        _, timestep = step(key, before, jnp.int32(0), env.params)
        assert not timestep.terminated and bool(timestep.truncated) == (time == 12)
        dead = before.replace(player_health=jnp.zeros_like(state.player_health))
        _, timestep = step(key, dead, jnp.int32(0), env.params)
        assert timestep.terminated and not timestep.truncated
    # The observation is the last one and not that of another episode.
    theirs, params = load()
    expected = jax.jit(theirs.step_env)(key, before, jnp.int32(0), params)[0]
    _, timestep = step(key, before, jnp.int32(0), env.params)
    np.testing.assert_allclose(timestep.observation, expected, rtol=1e-6)


def test_its_parameters_and_sizes_are_settings():
    found = settings(NAME)
    assert found["map_size"] == 64 and found["max_zombies"] == 3 and found["zombie_health"] == 5
    env = envs.make(NAME, map_size=32, max_cows=1, zombie_health=9, max_timesteps=7)
    assert env.params.zombie_health == 9 and env.params.max_timesteps == 7
    state, _ = jax.eval_shape(env.reset, jax.random.key(0), env.params)
    assert state.map.shape == (32, 32) and state.cows.health.shape == (1,)
    with pytest.raises(UserError, match="did you mean 'max_zombies'"):
        envs.make(NAME, max_zombie=1)
    with pytest.raises(UserError, match=r"The max_cows of .* is 0; it must be an integer from 1"):
        envs.make(NAME, max_cows=0)
    with pytest.raises(UserError, match="did you mean 'craftax/Craftax-Symbolic-v1'"):
        envs.make("craftax/Craftax-Symbolic-v2")


def test_an_agent_trains_in_it():
    trains(envs.make(NAME, map_size=32))
