"""The life in which claims compare lifelong learning.

Its tasks are the four corners of a room, one after the other; each is wrong in all other tasks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Arena, Trial
from experiments.evidence.measure import configure
from jaxrl import envs
from jaxrl.algorithms.lifelong import lifelong_ppo
from jaxrl.core import trees
from jaxrl.core.train import start, train
from jaxrl.core.types import Algorithm, Array, Environment, Key
from jaxrl.evaluation import lifelong as worth

TASKS, PERIODS, WINDOWS, ENVS, STEPS = (0, 2, 1, 3), 3, 12, 16, 32
LIFE = len(TASKS) * PERIODS * WINDOWS * ENVS * STEPS  # environment steps
SETTINGS = {
    "values": TASKS,
    "periods": PERIODS,
    "windows": WINDOWS,
    "episodes": 16,
    "measure": "success",
    "max_tasks": len(TASKS),
    "ppo.rollouts.num_envs": ENVS,
    "ppo.rollouts.num_steps": STEPS,
    "ppo.passes.minibatches": 2,
    "ppo.torso.hidden": (32, 32),
    "ppo.optimizer.learning_rate": 3e-3,
    "ppo.discount": 0.95,
    "ppo.entropy_weight": 0.02,
    "replay.replays": ENVS,
    "replay.clone.rate": 1e-3,
    "ewc.weight": 30.0,
}
TINY = {
    "periods": 2,
    "windows": 1,
    "episodes": 2,
    "ppo.rollouts.num_envs": 4,
    "ppo.rollouts.num_steps": 8,
    "ppo.passes.minibatches": 1,
    "ppo.passes.epochs": 1,
    "ppo.torso.hidden": (4,),
    "ewc.samples": 2,
    "replay.capacity": 8,
    "replay.replays": 2,
    "replay.clone.steps": 1,
}


def corners(low: float, high: float) -> Arena:
    """Return the life as an arena in which the metric lies between `low` and `high`."""
    return Arena("corners", LIFE, low, high, params={"size": 7}, settings=SETTINGS)


class Life:
    """PPO in a life of tasks, as the algorithm of a side."""

    name = "lifelong_ppo"
    Config = lifelong_ppo.Config

    def __call__(self, env: Environment, config: lifelong_ppo.Config) -> Algorithm:
        return lifelong_ppo.lifelong_ppo(env, config)


def histories(
    trial: Trial, keys: Key, hyper: Mapping[str, Any], reborn: Array
) -> tuple[worth.History, Array]:
    """Return the evaluations of lives, in one program, and the environment steps of each [runs].

    Each life has its key of `keys` [runs] and its value of each of `hyper` [runs].
    reborn: bool [runs]; if true, the agent is reset before each task, so that each task is learned
        by an expert that knows no other.
    """
    config = configure(trial, TINY if trial.tiny else {})
    env = envs.make(trial.environment.env, **trial.environment.params)
    algorithm = trial.side.algorithm(env, config)
    tasks = len(config.values) * config.rounds
    found = _histories(algorithm, tasks, config.periods, keys, dict(hyper), reborn)
    return found, jnp.full(len(keys), tasks * config.periods * algorithm.env_steps, jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _histories(algorithm, tasks, periods, keys, hyper, reborn):
    def one(key, hyper, reborn):
        first = start(algorithm, key, hyper)

        def task(run, _):
            inner = run.state.inner
            agent = trees.where(reborn, first.state.inner.agent, inner.agent)
            inner = dataclasses.replace(inner, agent=agent)
            run = dataclasses.replace(run, state=dataclasses.replace(run.state, inner=inner))
            return train(algorithm, run, periods)[0], None

        return jax.lax.scan(task, first, None, tasks)[0].state.history

    return jax.vmap(one)(keys, hyper, reborn)


@jax.jit
@jax.vmap
def scores(history: worth.History) -> dict[str, Array]:
    """Return scores of each life [runs], means over its tasks.

    performance: at the end of the life. kept: 1 minus what was forgotten. maintenance. final: the
    success of each task when it was last learned. untrained: before the life.
    """
    lost, last = worth.forgetting(history), worth.performance(history)
    learned = worth.make_per_task(last.value + lost.value, last.exists)
    return {
        "performance": last.mean().value(),
        "kept": 1.0 - lost.mean().value(),
        "maintenance": worth.performance_maintenance(history).mean().value(),
        "final": learned.mean().value(),
        "untrained": history.returns[0].mean(),
    }
