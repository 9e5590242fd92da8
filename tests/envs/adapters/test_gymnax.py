"""The adapter of gymnax against gymnax itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.envs.check_structure import check_structure
from tests.envs.adapters.training import trains

gymnax = pytest.importorskip("gymnax", reason="gymnax is not installed (the suites extra)")

COMPARED = ("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "DeepSea-bsuite", "FrozenLake-misc")


def test_it_is_an_environment():
    envs.check_environment(envs.make("gymnax/CartPole-v1"), 32)
    check_structure(envs.make("gymnax/Catch-bsuite"))


@pytest.mark.parametrize("name", COMPARED)
def test_the_same_keys_give_what_gymnax_gives(name):
    env = envs.make(f"gymnax/{name}")
    theirs, params = gymnax.make(name)
    first, *rest = jax.random.split(jax.random.key(3), 25)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    raw_step = jax.jit(theirs.step_env)
    state, timestep = reset(first, env.params)
    observation, raw = jax.jit(theirs.reset_env)(first, params)
    np.testing.assert_array_equal(timestep.observation, observation)
    for key in rest:
        action = spaces.sample(env.action_space, jax.random.fold_in(key, 0))
        state, timestep = step(key, state, action, env.params)
        observation, raw, reward, terminated, _ = raw_step(key, raw, action, params)
        np.testing.assert_array_equal(timestep.observation, observation)
        assert timestep.reward == jnp.float32(reward)
        assert bool(timestep.terminated) == bool(terminated)
        assert not timestep.truncated or int(raw.time) >= params.max_steps_in_episode
        if timestep.done:
            break


def test_its_clock_truncates_and_its_task_terminates():
    env = envs.make("gymnax/CartPole-v1", max_steps_in_episode=7)
    assert env.max_steps == 7
    balanced = lambda state: jax.tree.map(jnp.zeros_like, state)
    state, _ = env.reset(jax.random.key(0), env.params)
    state = balanced(state).replace(time=jnp.int32(5))
    step = jax.jit(env.step)
    for time in (6, 7):
        state, timestep = step(jax.random.key(1), state, jnp.int32(time % 2), env.params)
        assert not timestep.terminated
        assert bool(timestep.truncated) == (time == 7)
    fallen = state.replace(time=jnp.int32(6), theta=jnp.float32(3.0))
    _, timestep = step(jax.random.key(1), fallen, jnp.int32(0), env.params)
    assert timestep.terminated and not timestep.truncated


def test_its_parameters_are_ours():
    state, _ = envs.make("gymnax/CartPole-v1").reset(
        jax.random.key(0), gymnax.make("CartPole-v1")[1]
    )
    light, heavy = (envs.make("gymnax/CartPole-v1", gravity=g) for g in (1.0, 20.0))
    assert heavy.params.gravity == 20.0
    after = [e.step(jax.random.key(1), state, jnp.int32(0), e.params)[0] for e in (light, heavy)]
    assert after[0].theta_dot != after[1].theta_dot


def test_an_agent_trains_in_it():
    trains(
        envs.make("gymnax/Pendulum-v1")
    )  # with a Box of actions; the other suites have discrete ones
