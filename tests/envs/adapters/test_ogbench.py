"""Environments of OGBench on the host."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control.sac import sac
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.runtime import host
from tests.envs.adapters.hosting import constant


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
    maze = environments.copies.vector.envs[0].unwrapped  # type: ignore[attr-defined]
    for _ in range(env.max_steps or 0):
        seen = environments.timestep.observation
        subgoal, _ = maze.get_oracle_subgoal(maze.get_xy(), maze.cur_goal_xy)
        direction = np.asarray(subgoal) - seen["observation"][0]
        action = direction / max(np.linalg.norm(direction), 1e-6)
        after, endings, _ = environments.step(action[None].astype(np.float32))
        if endings.done[0]:
            break
    assert after.terminated[0] and endings.metrics["success"][0] == 1 and after.reward[0] == 1
