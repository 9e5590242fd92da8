"""The adapter of jumanji against jumanji itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.check_structure import check_structure
from jaxrl.envs.policies import random_action
from tests.envs.adapters.training import trains

jumanji = pytest.importorskip("jumanji", reason="jumanji is not installed (the suites extra)")


def test_it_is_an_environment():
    envs.check_environment(envs.make("jumanji/Snake-v1"), 24)
    check_structure(envs.make("jumanji/Connector-v3"))  # one reward for each of ten agents


@pytest.mark.parametrize("name", ["Snake-v1", "Maze-v0", "Game2048-v1", "Knapsack-v1"])
def test_the_same_key_gives_what_jumanji_gives(name):
    env, theirs = envs.make(f"jumanji/{name}"), jumanji.make(name)
    first, *rest = jax.random.split(jax.random.key(4), 41)
    state, timestep = jax.jit(env.reset)(first, ())
    raw, raw_timestep = jax.jit(theirs.reset)(first)
    step, raw_step = jax.jit(env.step), jax.jit(theirs.step)
    for key in rest:
        for ours, raws in zip(
            jax.tree.leaves(timestep.observation),
            jax.tree.leaves(raw_timestep.observation),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, raws)
        np.testing.assert_array_equal(timestep.legal_actions, raw_timestep.observation.action_mask)
        action = random_action(env.action_space, key, timestep)
        state, timestep = step(key, state, action, ())
        raw, raw_timestep = raw_step(raw, action)
        assert timestep.reward == raw_timestep.reward
        assert bool(timestep.done) == bool(raw_timestep.last())
        if timestep.done:
            break


def test_its_time_limit_truncates_although_jumanji_terminates():
    env, theirs = envs.make("jumanji/Maze-v0"), jumanji.make("Maze-v0")
    assert env.max_steps == theirs.time_limit == 100
    key = jax.random.key(0)
    (state, timestep), (raw, _) = env.reset(key, ()), theirs.reset(key)
    step, raw_step = jax.jit(env.step), jax.jit(theirs.step)
    # Going back and forth over the same edge never reaches the target.
    action = int(np.flatnonzero(timestep.legal_actions)[0])
    for t in range(100):
        chosen = jnp.int32(action if t % 2 == 0 else (action + 2) % 4)
        state, timestep = step(key, state, chosen, ())
        raw, raw_timestep = raw_step(raw, chosen)
    assert raw_timestep.last() and raw_timestep.discount == 0
    assert timestep.truncated and not timestep.terminated


def test_its_end_terminates():
    env = envs.make("jumanji/Snake-v1")
    state, timestep = env.reset(jax.random.key(0), ())
    step = jax.jit(env.step)
    for _ in range(12):  # straight into the wall
        state, timestep = step(jax.random.key(0), state, jnp.int32(0), ())
        if timestep.done:
            break
    assert timestep.terminated and not timestep.truncated


@pytest.mark.parametrize("name", ["Snake-v1", "Cleaner-v0"])  # one action, and a vector of them
def test_an_agent_trains_in_it(name):
    trains(envs.make(f"jumanji/{name}"))


def test_one_reward_per_agent_is_not_a_single_reward():
    with pytest.raises(UserError, match="'jumanji/Connector-v3' rewards 10 agents"):
        trains(envs.make("jumanji/Connector-v3"))
