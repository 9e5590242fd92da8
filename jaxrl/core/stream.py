"""The stream of auto-resetting copies: the only code that resets environments and memory.

A stream is `B` copies of one environment, each in the middle of some episode. `advance` acts
once in every copy. Where an episode ends, the transition keeps the true last time step, and the
copy goes on from a fresh episode of a newly sampled task.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.staging import staged
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
    """Fresh episodes drawn ahead, for environments whose reset is expensive."""

    fresh: tuple[Tree, Tree, TimeStep]  # task ids, states, time steps, leading axis [K]
    used: Array  # int32: how many were asked for; above K they repeat


@struct
class Endings:
    """The statistics of the episodes that end at a step; every leaf has leading axis [B]. Folded
    by `statistics` over a whole window at once: a few sums instead of a few at every step."""

    done: Array
    episode_return: Array
    episode_length: Array
    metrics: dict[str, Array]


@struct
class Turn:
    """What one call of `advance` takes: random keys, and which call of a loop it is."""

    keys: Key  # [4]
    number: Array  # int32; see `staged`


def turn(key: Key, number: Array | int = 0) -> Turn:
    """What a single call of `advance` takes, the one of this `number` in its loop."""
    return Turn(jax.random.split(key, 4), jnp.asarray(number, jnp.int32))


def turns(key: Key, n: int) -> Turn:
    """The turns, leading axis [n], of `n` calls of `advance`; to be scanned over."""
    return Turn(jax.random.split(key, (n, 4)), jnp.arange(n, dtype=jnp.int32))


def fresh(env: Environment, tasks: Tasks, task_state: Tree, keys: Key, n: int):
    """`n` newly sampled tasks and the first states and time steps of their episodes; two `keys`."""
    task_key, reset_key = keys
    ids = tasks.sample(task_state, task_key, n)

    def reset(key, task):
        return env.reset(key, tasks.params(task_state, task))

    return ids, *trees.strong(jax.vmap(reset)(jax.random.split(reset_key, n), ids))


def pool(env: Environment, tasks: Tasks, task_state: Tree, key: Key, n: int) -> Pool:
    """`n` fresh episodes to serve the resets of one window."""
    return Pool(fresh(env, tasks, task_state, jax.random.split(key), n), jnp.int32(0))


def start(
    env: Environment, tasks: Tasks, task_state: Tree, policy: Policy, key: Key, n: int
) -> Streams:
    """`n` copies, each at the start of an episode."""
    ids, env_state, timestep = fresh(env, tasks, task_state, jax.random.split(key), n)
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
    turn: Turn,
    greedy: bool = False,
    pool: Pool | None = None,
) -> tuple[Streams, Pool | None, Transition, Endings]:
    """Act once in each copy. `turn` is one of `turns`.

    Returns the streams, the pool, the transitions [B] and what ended [B].
    """
    n = streams.episode_length.shape[0]
    # Else XLA derives the keys again wherever a number is drawn.
    keys = jax.lax.optimization_barrier(turn.keys)
    act_key, step_key, _, _ = keys

    timestep = streams.timestep
    memory = trees.where(timestep.first, policy.memory(n), streams.memory)
    action, memory, extras = policy.act(policy.state, timestep, memory, act_key, greedy)

    def step(key, state, action, task):
        return env.step(key, state, action, tasks.params(task_state, task))

    def steps(key, states, actions, ids):
        return jax.vmap(step)(jax.random.split(key, n), states, actions, ids)

    env_state, next_timestep = staged(
        turn.number >= 0, steps, step_key, streams.env_state, action, streams.task
    )
    transition = Transition(timestep, action, next_timestep, streams.task, extras)

    done = next_timestep.done
    episode_return = streams.episode_return + next_timestep.reward
    episode_length = streams.episode_length + 1
    endings = Endings(done, episode_return, episode_length, next_timestep.metrics or {})
    if pool is None:
        new = fresh(env, tasks, task_state, keys[2:], n)
    else:
        size = jax.tree.leaves(pool.fresh)[0].shape[0]
        place = (pool.used + jnp.cumsum(done) - 1) % size
        new = jax.tree.map(lambda x: x[place], pool.fresh)
        pool = Pool(pool.fresh, pool.used + done.sum(dtype=jnp.int32))

    live = trees.where(done, new[2], next_timestep)
    # What these three are after the reset is known; said so, they cost no selects.
    running = jnp.zeros_like(done)
    live = dataclasses.replace(live, terminated=running, truncated=running, first=done)
    streams = Streams(
        trees.where(done, new[1], env_state),
        live,
        memory,
        trees.where(done, new[0], streams.task),
        trees.where(done, jnp.zeros_like(episode_return), episode_return),
        jnp.where(done, 0, episode_length),
    )
    return streams, pool, transition, endings


def statistics(endings: Endings) -> dict[str, Any]:
    """Of the episodes that ended in a window [T, B]: `episode_return` (with N agents
    `episode_return_0`, ...), `episode_length`, how many `episodes`, and what the environment
    reports under `TimeStep.metrics` at an episode's end."""
    mean = lambda values: m.mean(values, endings.done, axis=(0, 1))
    returns = m.by_agent("episode_return", endings.episode_return, batch=2)
    return {
        **{name: mean(value) for name, value in returns.items()},
        "episode_length": mean(endings.episode_length),
        "episodes": m.Sum(endings.done.sum(dtype=jnp.float32)),
    } | {name: mean(value) for name, value in endings.metrics.items()}
