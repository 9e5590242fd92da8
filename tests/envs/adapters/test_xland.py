"""The adapter of XLand-MiniGrid against XLand-MiniGrid itself."""

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

xminigrid = pytest.importorskip(
    "xminigrid", reason="XLand-MiniGrid is not installed (the xland extra)"
)

benchmarks = xminigrid.benchmarks
LEFT, RIGHT, FORWARD = 2, 1, 0
XLAND = "xland/XLand-MiniGrid-R1-9x9"


@functools.cache
def compile_env(name, **options):
    env = envs.make(f"xland/{name}", **options)
    return env, jax.jit(env.reset), jax.jit(env.step)


def test_it_is_an_environment():
    envs.check_environment(envs.make("xland/MiniGrid-Empty-5x5", max_steps=20), 16)
    check_structure(envs.make(XLAND))


@pytest.mark.parametrize("name", ["MiniGrid-EmptyRandom-5x5", "MiniGrid-MemoryS8"])
def test_the_same_keys_give_what_xland_gives(name):
    env, reset, step = compile_env(name)
    theirs, params = xminigrid.make(name)
    first, *rest = jax.random.split(jax.random.key(3), env.max_steps + 1)
    state, timestep = reset(first, ())
    raw = jax.jit(theirs.reset)(params, first)
    raw_step = jax.jit(theirs.step)
    np.testing.assert_array_equal(timestep.observation, raw.observation)
    for key in rest:
        action = spaces.sample(env.action_space, key)
        state, timestep = step(key, state, action, ())
        raw = raw_step(params, raw, action)
        np.testing.assert_array_equal(timestep.observation, raw.observation)
        assert timestep.reward == raw.reward and bool(timestep.done) == bool(raw.last())
        assert bool(timestep.terminated) == (raw.discount == 0)
        if timestep.done:
            break
    assert timestep.done


def test_many_instances_are_stepped_at_once():
    _, reset, step = compile_env("MiniGrid-EmptyRandom-5x5")
    keys = jax.random.split(jax.random.key(0), 6)
    states, timesteps = jax.vmap(reset, (0, None))(keys, ())
    actions = jnp.arange(6)
    states, timesteps = jax.vmap(step, (0, 0, 0, None))(keys, states, actions, ())
    state, _ = reset(keys[4], ())
    _, timestep = step(keys[4], state, actions[4], ())
    np.testing.assert_array_equal(timesteps.observation[4], timestep.observation)


def walk(env, reset, step, actions):
    state, _ = reset(jax.random.key(0), ())
    for action in actions:
        state, timestep = step(jax.random.key(1), state, jnp.int32(action), ())
    return timestep


def test_its_goal_terminates_and_its_clock_truncates():
    env, reset, step = compile_env("MiniGrid-Empty-5x5", max_steps=5)
    assert (env.max_steps, envs.make("xland/MiniGrid-Empty-5x5").max_steps) == (5, 100)
    # The goal is two cells to the right and two below, so that it is reached with the last step.
    reached = walk(env, reset, step, [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD])
    assert reached.terminated and not reached.truncated and reached.reward == pytest.approx(0.1)
    late = walk(env, reset, step, [LEFT] * 5)
    assert late.truncated and not late.terminated and late.reward == 0
    theirs, params = xminigrid.make("MiniGrid-Empty-5x5")
    raw = theirs.reset(params, jax.random.key(0))
    for _ in range(5):
        raw = jax.jit(theirs.step)(params, raw, LEFT)
    np.testing.assert_array_equal(late.observation, raw.observation)


def test_direction_and_rules_can_be_observed():
    env, reset, step = compile_env(
        "XLand-MiniGrid-R1-9x9", observe_direction=True, observe_rules=True
    )
    state, timestep = reset(jax.random.key(0), ())
    names = {"direction", "goal_encoding", "img", "rule_encoding"}
    assert set(timestep.observation) == set(env.observation_space) == names
    _, after = step(jax.random.key(1), state, jnp.int32(LEFT), ())
    assert after.observation["direction"].argmax() != timestep.observation["direction"].argmax()


@pytest.fixture
def rulesets(monkeypatch, tmp_path):
    """A benchmark of three rulesets, each with another object to go to."""
    goal, rule = np.zeros((3, 5), np.uint8), np.zeros((3, 1, 7), np.uint8)
    tiles = np.array([[[3, 1]], [[4, 2]], [[5, 3]]], np.uint8)
    goal[:, 0] = 3  # the agent is next to a tile
    goal[:, 1:3] = tiles[:, 0]
    monkeypatch.setattr(benchmarks, "DATA_PATH", str(tmp_path))
    saved = {"goals": goal, "rules": rule, "init_tiles": tiles, "num_rules": np.zeros(3)}
    benchmarks.save_bz2_pickle(
        {k: jnp.asarray(v) for k, v in saved.items()}, str(tmp_path / "trivial_21k")
    )
    envs.registry._call.cache_clear()
    return tiles


def test_a_benchmark_has_a_ruleset_for_each_episode(rulesets):
    env = envs.make(XLAND, benchmark="trivial-21k")
    keys = jax.random.split(jax.random.key(0), 40)
    state, _ = jax.jit(jax.vmap(env.reset, (0, None)))(keys, ())
    drawn = {tuple(x) for x in np.asarray(state.state.goal_encoding[:, 1:3]).tolist()}
    assert drawn == {tuple(x[0]) for x in rulesets.tolist()}
    fixed = envs.make(XLAND, benchmark="trivial-21k", ruleset=1)
    state, _ = jax.jit(jax.vmap(fixed.reset, (0, None)))(keys, ())
    assert (np.asarray(state.state.goal_encoding[:, 1:3]) == rulesets[1, 0]).all()
    with pytest.raises(UserError, match="ruleset is 3, but 'trivial-21k' has the rulesets 0 to 2"):
        envs.make(XLAND, benchmark="trivial-21k", ruleset=3)


def test_a_benchmark_that_cannot_be_downloaded_is_one_sentence(monkeypatch, tmp_path):
    def fail(*arguments):
        raise OSError("no network")

    monkeypatch.setattr(benchmarks, "DATA_PATH", str(tmp_path))
    monkeypatch.setattr(benchmarks, "_download_from_hf", fail)
    with pytest.raises(UserError, match=r"^XLand-MiniGrid could not download its benchmark 'small"):
        envs.make(XLAND, benchmark="small-1m")


def test_unknown_settings_are_rejected():
    found = settings("xland/MiniGrid-Empty-8x8")
    assert found["max_steps"] == 256 and found["view_size"] == 7 and "benchmark" not in found
    with pytest.raises(UserError, match="did you mean 'view_size'"):
        envs.make("xland/MiniGrid-Empty-8x8", view_sise=5)
    with pytest.raises(UserError, match="did you mean 'trivial-21k'"):
        envs.make(XLAND, benchmark="trivial-21")
    with pytest.raises(UserError, match="has no benchmark to take it from"):
        envs.make(XLAND, ruleset=2)
    with pytest.raises(UserError, match=r"The max_steps of .* is 0; it must be positive"):
        envs.make("xland/MiniGrid-Empty-8x8", max_steps=0)
    with pytest.raises(UserError, match="did you mean 'xland/MiniGrid-Empty-8x8'"):
        envs.make("xland/MiniGrid-Empty-8x")


def test_an_agent_trains_in_it():
    trains(envs.make("xland/MiniGrid-Empty-5x5"))
