"""The adapter of MuJoCo Playground against Playground itself."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.envs import adapters
from jaxrl.envs.check_structure import check_structure
from jaxrl.envs.registry import settings
from tests.envs.adapters.training import trains

playground = pytest.importorskip(
    "mujoco_playground", reason="MuJoCo Playground is not installed (the playground extra)"
)
NAME = "playground/CartpoleBalance"


@functools.cache
def compile_env(**options):
    env = envs.make(NAME, **options)
    return env, jax.jit(env.reset), jax.jit(env.step)


def load(**options):
    return playground.registry.load("CartpoleBalance", config_overrides={"impl": "jax", **options})


def test_it_is_an_environment():
    envs.check_environment(envs.make(NAME, episode_length=12), 16)
    check_structure(envs.make("playground/CheetahRun"))


def test_the_same_keys_give_what_playground_gives():
    env, reset, step = compile_env()
    theirs = load()
    first, *rest = jax.random.split(jax.random.key(2), 21)
    state, timestep = reset(first, ())
    raw = jax.jit(theirs.reset)(first)
    raw_step = jax.jit(theirs.step)
    np.testing.assert_array_equal(timestep.observation, raw.obs)
    for key in rest:
        action = spaces.sample(env.action_space, key)
        state, timestep = step(key, state, action, ())
        raw = raw_step(raw, action)
        np.testing.assert_allclose(timestep.observation, raw.obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(timestep.reward, raw.reward, rtol=1e-5)
        assert not timestep.done and not raw.done


def test_many_instances_are_stepped_at_once():
    env, reset, step = compile_env()
    keys = jax.random.split(jax.random.key(0), 8)
    states, timesteps = jax.vmap(reset, (0, None))(keys, ())
    actions = jax.vmap(functools.partial(spaces.sample, env.action_space))(keys)
    for _ in range(3):
        states, timesteps = jax.vmap(step, (0, 0, 0, None))(keys, states, actions, ())
    state, _ = reset(keys[5], ())
    for _ in range(3):
        state, timestep = step(keys[5], state, actions[5], ())
    assert timesteps.observation.shape == (8, 5)
    np.testing.assert_allclose(timesteps.observation[5], timestep.observation, rtol=1e-4, atol=1e-5)


def test_the_clock_truncates_and_keeps_the_last_observation():
    env, reset, step = compile_env(episode_length=12)
    assert (env.max_steps, envs.make(NAME).max_steps) == (12, 1000)
    state, _ = reset(jax.random.key(0), ())
    raw, raw_step = jax.jit(load().reset)(jax.random.key(0)), jax.jit(load().step)
    action = jnp.ones(1)
    for number in range(1, 13):
        state, timestep = step(jax.random.key(1), state, action, ())
        raw = raw_step(raw, action)
        assert not timestep.terminated and bool(timestep.truncated) == (number == 12)
    np.testing.assert_allclose(timestep.observation, raw.obs, rtol=1e-4, atol=1e-5)


def test_diverging_physics_terminates_with_a_finite_time_step():
    _, reset, step = compile_env(episode_length=12)
    state, timestep = reset(jax.random.key(0), ())
    broken = state.inner.replace(data=state.inner.data.replace(qpos=jnp.full(2, jnp.nan)))
    state = type(state)(broken, jnp.int32(11))  # also at the limit
    _, after = step(jax.random.key(1), state, jnp.zeros(1), ())
    assert after.terminated and not after.truncated and after.reward == 0
    np.testing.assert_array_equal(after.observation, timestep.observation)


def test_repeated_actions_are_one_step():
    env, reset, step = compile_env(action_repeat=3, episode_length=10)
    assert env.max_steps == 4  # as many as its wrapper needs to count to 10
    raw, raw_step = jax.jit(load().reset)(jax.random.key(0)), jax.jit(load().step)
    state, _ = reset(jax.random.key(0), ())
    assert env.step_seconds(state, ()) == pytest.approx(0.03)
    _, timestep = step(jax.random.key(1), state, jnp.ones(1), ())
    reward = 0.0
    for _ in range(3):
        raw = raw_step(raw, jnp.ones(1))
        reward += raw.reward
    np.testing.assert_allclose(timestep.observation, raw.obs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(timestep.reward, reward, rtol=1e-5)


def test_settings_are_those_of_its_configuration():
    found = settings(NAME)
    assert found["episode_length"] == 1000 and found["ctrl_dt"] == 0.01 and found["impl"] == "jax"
    assert not [name for name in found if "vision" in name]
    robot = playground.registry.get_default_config("Go1JoystickFlatTerrain")
    defaults = adapters.builder("playground/Go1JoystickFlatTerrain").defaults
    assert defaults["reward_config_scales_pose"] == robot.reward_config.scales.pose
    with pytest.raises(UserError, match="did you mean 'episode_length'"):
        envs.make(NAME, episode_lenght=3)
    with pytest.raises(UserError, match="Unknown impl of MuJoCo Playground 'cuda'"):
        envs.make(NAME, impl="cuda")
    with pytest.raises(UserError, match="repeats actions 0 times"):
        envs.make(NAME, action_repeat=0)
    with pytest.raises(UserError, match="did you mean 'playground/CartpoleBalance'"):
        envs.make("playground/CartpoleBalanc")


def test_a_robot_that_cannot_be_downloaded_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no git
    module = playground._src.mjx_env
    monkeypatch.setattr(module, "EXTERNAL_DEPS_PATH", tmp_path)
    monkeypatch.setattr(module, "MENAGERIE_PATH", tmp_path / "mujoco_menagerie")
    with pytest.raises(UserError, match=r"^'playground/Go1Getup' needs the robots of mujoco_menag"):
        envs.make("playground/Go1Getup")


class Partial(playground.MjxEnv):
    """CartpoleBalance, whose policy sees no velocities."""

    def __init__(self, config, config_overrides=None):
        super().__init__(config, config_overrides)
        self.inner = load()

    def reset(self, rng):
        return self._see(self.inner.reset(rng))

    def step(self, state, action):
        return self._see(self.inner.step(state, action))

    def _see(self, state):
        return state.replace(obs={"state": state.obs[:3], "privileged_state": state.obs})

    xml_path = property(lambda self: self.inner.xml_path)
    action_size = property(lambda self: self.inner.action_size)
    mj_model = property(lambda self: self.inner.mj_model)
    mjx_model = property(lambda self: self.inner.mjx_model)


def test_the_privileged_state_is_a_channel_of_its_own(monkeypatch):
    suite = playground.dm_control_suite
    suite.register_environment(
        "Partial", Partial, lambda: suite.get_default_config("CartpoleBalance")
    )
    monkeypatch.setattr(playground.registry, "ALL_ENVS", suite.ALL_ENVS)
    env = envs.make("playground/Partial")
    assert env.observation_space.shape == (3,)
    state, timestep = jax.jit(env.reset)(jax.random.key(0), ())
    _, after = jax.jit(env.step)(jax.random.key(1), state, jnp.zeros(1), ())
    for one in (timestep, after):
        assert one.privileged["state"].shape == (5,)
        np.testing.assert_array_equal(one.privileged["state"][:3], one.observation)


def test_an_agent_trains_in_it():
    trains(envs.make(NAME))
