"""The stream of auto-resetting copies: the only code that resets environments and memory.

A stream is `B` copies of one environment, each in the middle of some episode. `advance` acts
once in every copy. Where an episode ends, the transition keeps the true last time step, and the
copy goes on from a fresh episode of a newly sampled task.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.types import (
    Array,
    Environment,
    Key,
    Policy,
    Tasks,
    TimeStep,
    Transition,
    Tree,
    struct,
)


@struct
class Streams:
    """`B` live copies; every leaf has leading axis [B]."""

    env_state: Tree
    timestep: TimeStep
    memory: Tree  # after the last action; reset by `advance` where timestep.first
    task: Tree  # ids
    episode_return: Array  # so far, as the reward
    episode_length: Array  # int32


@struct
class Pool:
    """Fresh episodes drawn ahead, for environments whose reset is dear."""

    fresh: tuple[Tree, Tree, TimeStep]  # task ids, states, time steps, leading axis [K]
    used: Array  # int32: how many were asked for; above K they repeat


def fresh(env: Environment, tasks: Tasks, task_state: Tree, key: Key, n: int):
    """`n` newly sampled tasks and the first states and time steps of their episodes."""
    task_key, reset_key = jax.random.split(key)
    ids = tasks.sample(task_state, task_key, n)

    def reset(key, task):
        return env.reset(key, tasks.params(task_state, task))

    return ids, *jax.vmap(reset)(jax.random.split(reset_key, n), ids)


def pool(env: Environment, tasks: Tasks, task_state: Tree, key: Key, n: int) -> Pool:
    """`n` fresh episodes to serve the resets of one window."""
    return Pool(fresh(env, tasks, task_state, key, n), jnp.int32(0))


def start(
    env: Environment, tasks: Tasks, task_state: Tree, policy: Policy, key: Key, n: int
) -> Streams:
    """`n` copies, each at the start of an episode."""
    ids, env_state, timestep = fresh(env, tasks, task_state, key, n)
    return Streams(
        env_state,
        timestep,
        policy.memory(n),
        ids,
        jnp.zeros_like(timestep.reward),
        jnp.zeros(n, jnp.int32),
    )


def advance(
    env: Environment,
    tasks: Tasks,
    task_state: Tree,
    streams: Streams,
    policy: Policy,
    key: Key,
    greedy: bool = False,
    pool: Pool | None = None,
) -> tuple[Streams, Pool | None, Transition, dict[str, Any]]:
    """Act once in each copy.

    Returns the streams, the pool, the transitions [B] and the statistics of the episodes that
    ended: `episode_return`, `episode_length` (means and extremes), `episodes` (how many), and what
    the environment reports under `TimeStep.metrics` at an episode's end.
    """
    n = streams.episode_length.shape[0]
    act_key, step_key, reset_key = jax.random.split(key, 3)

    timestep = streams.timestep
    memory = trees.where(timestep.first, policy.memory(n), streams.memory)
    action, memory, extras = policy.act(policy.state, timestep, memory, act_key, greedy)

    def step(key, state, action, task):
        return env.step(key, state, action, tasks.params(task_state, task))

    env_state, next_timestep = jax.vmap(step)(
        jax.random.split(step_key, n), streams.env_state, action, streams.task
    )
    transition = Transition(timestep, action, next_timestep, streams.task, extras)

    done = next_timestep.done
    episode_return = streams.episode_return + next_timestep.reward
    episode_length = streams.episode_length + 1
    if pool is None:
        new = fresh(env, tasks, task_state, reset_key, n)
    else:
        size = jax.tree.leaves(pool.fresh)[0].shape[0]
        place = (pool.used + jnp.cumsum(done) - 1) % size
        new = jax.tree.map(lambda x: x[place], pool.fresh)
        pool = Pool(pool.fresh, pool.used + done.sum(dtype=jnp.int32))

    streams = Streams(
        trees.where(done, new[1], env_state),
        trees.where(done, new[2], next_timestep),
        memory,
        trees.where(done, new[0], streams.task),
        trees.where(done, jnp.zeros_like(episode_return), episode_return),
        jnp.where(done, 0, episode_length),
    )
    statistics = {
        "episode_return": m.mean(episode_return, done, axis=0),
        "episode_length": m.mean(episode_length, done, axis=0),
        "episodes": m.Sum(done.sum(dtype=jnp.float32)),
    } | {name: m.mean(value, done, axis=0) for name, value in (next_timestep.metrics or {}).items()}
    return streams, pool, transition, statistics
