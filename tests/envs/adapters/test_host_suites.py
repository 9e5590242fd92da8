"""Suites that run on the host: dm_control, EnvPool and Minari, each where it is installed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control.sac import sac
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Policy
from jaxrl.runtime import host
from jaxrl.runtime.players import play
from jaxrl.sources.handed import Play


def constant(action) -> Policy:
    """Return a policy that acts alike everywhere, and counts steps in its memory."""

    def act(state, timestep, memory, key, greedy):
        n = timestep.first.shape[0]
        return jax.tree.map(lambda x: jnp.stack([x] * n), action), memory + 1, {"before": memory}

    return Policy(act, lambda n: jnp.zeros(n, jnp.int32), ())


def test_tasks_of_dm_control():
    pytest.importorskip("dm_control")
    env = envs.make("dm_control/cartpole-swingup")
    assert env.max_steps == 1000 and set(env.observation_space) == {"position", "velocity"}
    environments = host.Environments(env, 2)
    environments.reset(random.key(0))
    first = environments.timestep.observation["position"]
    environments.reset(random.key(0))
    np.testing.assert_array_equal(environments.timestep.observation["position"], first)
    assert not np.array_equal(first[0], first[1])
    window = Play(env, 2, 1003, fresh=False, masked=False)
    x = play(environments, constant(jnp.zeros(1)), random.key(0), window).batch.transitions
    ends = np.flatnonzero(x.next_timestep.truncated[:, 0])
    assert ends.tolist() == [999] and not x.next_timestep.terminated.any()
    assert x.timestep.first[1000].all() and (x.extras["before"][1000] == 0).all()
    assert (x.next_timestep.reward >= 0).all() and (x.next_timestep.reward <= 1).all()
    with pytest.raises(UserError, match="did you mean 'dm_control/cartpole-swingup'"):
        envs.make("dm_control/cartpole-swingu")


def test_sac_learns_from_a_dict_with_scalars():
    pytest.importorskip("dm_control")
    env = envs.make("dm_control/walker-walk")
    sizes = {"num_envs": 1, "num_steps": 1, "warmup": 20, "batch_size": 8, "hidden": (8,)}
    algorithm = sac(env, replace(sac.Config(), sizes))
    environments = host.Environments(env, 1)
    run = host.start(algorithm, environments, random.key(0))
    run, row = host.train(algorithm, environments, run, 5)
    assert np.isfinite(m.values(row)["critic_loss"])


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_pools_return_the_true_last_observation(name):
    pytest.importorskip("envpool")
    env = envs.make(f"envpool/{name}")
    environments = host.Environments(env, 3)
    environments.reset(random.key(0))
    action = jnp.int32(1) if name == "CartPole-v1" else jnp.zeros(1)
    steps = 250
    window = Play(env, 3, steps, fresh=False, masked=False)
    played = play(environments, constant(action), random.key(0), window)
    x = played.batch.transitions
    done, first = x.next_timestep.done, x.timestep.first
    np.testing.assert_array_equal(first[1:], done[:-1])
    assert done.any() and (x.extras["before"][first] == 0).all()
    seen, after = x.timestep.observation, x.next_timestep.observation
    assert (seen[1:] == after[:-1])[~first[1:]].all()
    if name == "CartPole-v1":
        last = after[x.next_timestep.terminated]
        assert (np.abs(last[:, 2]) > 0.2).all()  # fallen, not begun anew
        assert (np.abs(seen[first][:, 2]) <= 0.05).all()
    else:
        assert np.flatnonzero(x.next_timestep.truncated[:, 0]).tolist() == [199]
        assert not x.next_timestep.terminated.any()


def test_the_environment_of_a_dataset(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    gymnasium = pytest.importorskip("gymnasium")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    recorder = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=30))
    recorder.reset(seed=0)
    for _ in range(40):
        *_, terminated, truncated, _ = recorder.step(1)
        if terminated or truncated:
            recorder.reset()
    recorder.create_dataset("cartpole/pushed-v0")
    env = envs.make("minari/cartpole/pushed-v0")
    assert env.max_steps == 30 and env.observation_space.shape == (4,)
    played = host.evaluate(env, constant(jnp.int32(1)), random.key(0), 2)
    assert played.finished.all() and played.returns.max() < 15
    with pytest.raises(UserError, match="Unknown dataset on this machine 'cartpole/pulled-v0'"):
        envs.make("minari/cartpole/pulled-v0")


def test_goals_of_ogbench():
    pytest.importorskip("ogbench")
    env = envs.make("ogbench/pointmaze-medium-v0", task=2, max_episode_steps=40)
    assert set(env.observation_space) == {"observation", "goal"} and env.max_steps == 40
    environments = host.Environments(env, 2)
    environments.reset(random.key(0))
    goal = environments.timestep.observation["goal"]
    before = np.random.get_state()[1]
    environments.reset(random.key(0))
    np.testing.assert_array_equal(environments.timestep.observation["goal"], goal)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # the user's own stays
    played = host.evaluate(env, constant(jnp.zeros(2)), random.key(0), 2)
    assert played.finished.all() and played.metrics["success"].shape == (2,)
    assert (played.lengths == 40).all() and not played.metrics["success"].any()
    sizes = {"num_envs": 2, "num_steps": 5, "warmup": 20, "batch_size": 8, "hidden": (8,)}
    algorithm = sac(env, replace(sac.Config(), sizes))
    run = host.start(algorithm, environments, random.key(0))
    _, row = host.train(algorithm, environments, run, 10)
    assert m.values(row)["success"] == 0 and m.values(row)["episodes"] == 2
    single = envs.make("ogbench/pointmaze-medium-singletask-task2-v0")
    assert single.observation_space.shape == (2,)
    with pytest.raises(UserError, match="task is 6"):
        envs.make("ogbench/pointmaze-medium-v0", task=6)


def test_tasks_of_ogbench_are_reached_by_its_own_oracle():
    ogbench = pytest.importorskip("ogbench")
    assert ogbench
    env = envs.make("ogbench/pointmaze-medium-v0", task=1)
    environments = host.Environments(env, 1)
    environments.reset(random.key(0))
    maze = environments.copies.envs[0].unwrapped  # type: ignore[attr-defined]
    for _ in range(env.max_steps or 0):
        seen = environments.timestep.observation
        subgoal, _ = maze.get_oracle_subgoal(maze.get_xy(), maze.cur_goal_xy)
        direction = np.asarray(subgoal) - seen["observation"][0]
        action = direction / max(np.linalg.norm(direction), 1e-6)
        after, endings, _ = environments.step(action[None].astype(np.float32))
        if endings.done[0]:
            break
    assert after.terminated[0] and endings.metrics["success"][0] == 1 and after.reward[0] == 1
