"""Real and imaginary rollouts of tasks that no one has played, after ImagineBench (Pang et al.,
2025, "ImagineBench: Evaluating reinforcement learning with large language model rollouts",
arXiv:2505.10010), in point mazes. The tasks that were played are the goals of the environment; the
novel ones are all other free cells of its maze. Datasets:

    imaginary   demonstrations of the environment's goals, and as many steps of imaginary rollouts
                to novel goals
    all-tasks   demonstrations of both, the bound that is to be reached

`demonstrations` is the other end, real rollouts of the environment's goals alone. A language model
generates their imaginary rollouts from instructions; here a goal is the instruction, and a script
stands for the model. It knows the way to the goal in three of four episodes, and goes straight for
it in the others, through walls. It knows no physics: the ball takes up half of the speed asked for
in each step, whatever its mass, is jolted by noise, and never meets a wall.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.offline.shared.augmentation import check_maze
from jaxrl.algorithms.offline.shared.recording import record
from jaxrl.algorithms.offline.shared.scripted import bare, demonstrations
from jaxrl.core import random
from jaxrl.core.types import Array, Environment, Policy, TimeStep
from jaxrl.datasets.data import Dataset, join
from jaxrl.envs.planar.point_maze import PROPORTIONAL
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers import expert_channel

NAMES = ("imaginary", "all-tasks")
TOP_SPEED = 3.0  # m/s, imagined speed at action 1
NOISE = 0.02  # m, standard deviation of imagined jolts
STRAIGHT = 0.25  # share of imaginary rollouts that go straight for the goal


def load(env: Environment, name: str, size: int, seed: int) -> Dataset:
    """Return the dataset `name`, one of `NAMES`, of about `size` steps for each half.

    Raises `UserError` unless `env` is a point maze.
    """
    check_maze(env, f"the dataset '{name}'")
    novel = with_novel_goals(env)
    if name == "all-tasks":
        other = demonstrations(novel, size, seed)
    else:
        dreamed = imagine(novel)
        other = bare(record(dreamed, dreamer(dreamed), random.key(seed), size))
    halves = {"played": demonstrations(env, size, seed), "novel": other}
    return join(name, [Dataset(half, steps) for half, steps in halves.items()])


def with_novel_goals(env: Environment) -> Environment:
    """Return a point maze whose goals are all free cells that are no goals of `env`."""
    params = env.params
    walls, width = np.asarray(params.walls), params.walls.shape[1]
    known = set(np.asarray(params.goals)[: params.num_goals].tolist())
    free = [row * width + column for row, column in np.argwhere(walls == 0)]
    novel = np.array([cell for cell in free if cell not in known] or free, np.int32)
    goals = np.resize(novel, params.goals.shape)
    changed = dataclasses.replace(params, goals=goals, num_goals=len(novel))
    return dataclasses.replace(env, params=changed)


def imagine(env: Environment) -> Environment:
    """Return a point maze as it is imagined: without walls, masses or inertia as they are. The
    expert's advice is in the channel `privileged`; inside of a wall it is to go straight on."""
    goals, limit, guide = env.goals, env.max_steps, env.expert
    assert goals is not None and limit is not None and guide is not None

    def expert(state, params):
        walls, place = jnp.asarray(params.walls), state.inner.physics[:2] / params.cell
        height, width = walls.shape
        row = jnp.floor(height / 2 - place[1]).astype(jnp.int32)
        column = jnp.floor(width / 2 + place[0]).astype(jnp.int32)
        inside = walls.at[row, column].get(mode="fill", fill_value=1) != 0
        direct = straight_on(state.inner.physics[:2], state.inner.goal)
        return jnp.where(inside, direct, guide(state, params))

    def step(key, state, action, params):
        inner = state.inner
        position, velocity = inner.physics[:2], inner.physics[2:]
        velocity = (velocity + TOP_SPEED * jnp.clip(action, -1.0, 1.0)) / 2
        position = position + params.dt * velocity + NOISE * jax.random.normal(key, (2,))
        physics = jnp.concatenate([position, velocity])
        state = dataclasses.replace(
            state,
            inner=dataclasses.replace(inner, physics=physics, action=action),
            steps=state.steps + 1,
        )
        reward, terminated = goals.outcome(position, inner.goal, params)
        no = jnp.zeros((), bool)
        return state, TimeStep(
            physics,
            jnp.asarray(reward, jnp.float32),
            terminated | no,
            (state.steps >= limit) & ~terminated,
            no,
            goal=inner.goal,
            metrics={"success": (terminated | no).astype(jnp.float32)},
        )

    return expert_channel(dataclasses.replace(env, step=step, expert=expert))


def straight_on(place: Array, goal: Array) -> Array:
    """Return actions [..., 2] toward goals [..., 2], whatever is between."""
    return jnp.clip(PROPORTIONAL * (goal - place), -1.0, 1.0)


def dreamer(env: Environment) -> Policy:
    """Return the policy of imaginary rollouts."""
    expert = expert_policy(env)

    def act(state, timestep, memory, key, greedy):
        drawn = jax.random.bernoulli(key, STRAIGHT, memory.shape)
        straight = jnp.where(timestep.first, drawn, memory)
        advised: Array = expert.act((), timestep, (), key, greedy)[0]
        direct = straight_on(timestep.observation[:, :2], timestep.goal)
        return jnp.where(straight[:, None], direct, advised), straight, {}

    return Policy(act, lambda n: jnp.zeros(n, bool))
