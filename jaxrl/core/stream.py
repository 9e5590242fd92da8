"""The stream of auto-resetting copies: the only code that resets environments and memory.

The stream holds `B` copies of one environment, each in the middle of some episode. `advance` acts
once in every copy. Where an episode ends, the transition keeps the true last time step, and the
copy goes on with a new episode of a newly sampled task.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import memory as memories
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.staging import isolate
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
    """`B` live copies of an environment; every leaf has the leading axis [B]."""

    env_state: Tree
    timestep: TimeStep
    memory: Tree
    """The agent's memory after the last action; `advance` resets it where `timestep.restarts`."""
    task: Tree
    """Ids of the tasks."""
    episode_return: Array
    """Sum of the rewards of the episode so far, shaped as the reward."""
    episode_length: Array
    """Steps of the episode so far: int32."""
    true_return: Array | None = None
    """Sum of the episode's true rewards so far, where the environment has that channel."""


@struct
class Pool:
    """New episodes drawn ahead, for environments whose reset is expensive."""

    fresh: tuple[Tree, Tree, TimeStep]
    """Task ids, states and time steps, leading axis [K]."""
    used: Array
    """Episodes that were asked for; beyond K they repeat: int32."""


@struct
class Endings:
    """Statistics of the episodes that end at a step; every leaf has the leading axis [B].

    `statistics` folds them over a whole window at once, which takes a few sums instead of a few at
    every step.
    """

    done: Array
    episode_return: Array
    episode_length: Array
    metrics: dict[str, Array]
    true_return: Array | None = None


@struct
class StepInput:
    """Input of one call of `advance`: random keys, and the number of the call in its loop."""

    keys: Key
    """Four keys, [4]."""
    number: Array
    """Number of the call, which `isolate` compares: int32."""


def step_input(key: Key, number: Array | int = 0) -> StepInput:
    """Make the input of a single call of `advance`, which has this `number` in its loop."""
    return StepInput(jax.random.split(key, 4), jnp.asarray(number, jnp.int32))


def step_inputs(key: Key, n: int) -> StepInput:
    """Make the inputs of `n` calls of `advance`, leading axis [n], to be scanned over."""
    return StepInput(jax.random.split(key, (n, 4)), jnp.arange(n, dtype=jnp.int32))


def new_episodes(
    env: Environment, tasks: Tasks, task_state: Tree, keys: Key, n: int
) -> tuple[Tree, Tree, TimeStep]:
    """Sample `n` tasks and reset an environment for each, with two `keys`. Returns the ids, states
    and time steps, leading axis [n]."""
    task_key, reset_key = keys
    ids = tasks.sample(task_state, task_key, n)

    def reset(key, task):
        return env.reset(key, tasks.params(task_state, task))

    return ids, *trees.strong(jax.vmap(reset)(jax.random.split(reset_key, n), ids))


def pool(env: Environment, tasks: Tasks, task_state: Tree, key: Key, n: int) -> Pool:
    """Draw `n` new episodes, to serve the resets of one window."""
    return Pool(new_episodes(env, tasks, task_state, jax.random.split(key), n), jnp.int32(0))


def start(
    env: Environment, tasks: Tasks, task_state: Tree, policy: Policy, key: Key, n: int
) -> Streams:
    """Start `n` copies, each at the beginning of an episode."""
    ids, env_state, timestep = new_episodes(env, tasks, task_state, jax.random.split(key), n)
    return Streams(
        env_state,
        timestep,
        policy.memory(n),
        ids,
        jnp.zeros_like(timestep.reward),
        jnp.zeros(n, jnp.int32),
        None if timestep.true_reward is None else jnp.zeros_like(timestep.true_reward),
    )


def advance(
    env: Environment,
    tasks: Tasks,
    task_state: Tree,
    streams: Streams,
    policy: Policy,
    step_input: StepInput,
    greedy: bool = False,
    pool: Pool | None = None,
) -> tuple[Streams, Pool | None, Transition, Endings]:
    """Act once in each copy.

    env, tasks, task_state: the environment, and where its tasks come from.
    streams: the copies.
    policy: how to act.
    step_input: one of `step_inputs`.
    greedy: whether to act greedily.
    pool: new episodes to continue with; without one, an episode is drawn for every copy.

    Returns the streams, the pool, the transitions [B] and the endings [B].
    """
    n = streams.episode_length.shape[0]
    # Without the barrier XLA derives the keys again wherever a number is drawn.
    keys = jax.lax.optimization_barrier(step_input.keys)
    act_key, step_key, _, _ = keys

    timestep = streams.timestep
    memory = memories.restart(timestep.restarts, policy.memory(n), streams.memory)
    action, memory, extras = policy.act(policy.state, timestep, memory, act_key, greedy)

    def step(key, state, action, task):
        return env.step(key, state, action, tasks.params(task_state, task))

    def steps(key, states, actions, ids):
        return jax.vmap(step)(jax.random.split(key, n), states, actions, ids)

    env_state, next_timestep = isolate(
        step_input.number >= 0, steps, step_key, streams.env_state, action, streams.task
    )
    transition = Transition(timestep, action, next_timestep, streams.task, extras)

    done = next_timestep.done
    episode_return = streams.episode_return + next_timestep.reward
    episode_length = streams.episode_length + 1
    true_return = streams.true_return
    if true_return is not None:
        true_return = true_return + next_timestep.true_reward
    metrics = next_timestep.metrics or {}
    endings = Endings(done, episode_return, episode_length, metrics, true_return)
    if pool is None:
        new = new_episodes(env, tasks, task_state, keys[2:], n)
    else:
        size = jax.tree.leaves(pool.fresh)[0].shape[0]
        place = (pool.used + jnp.cumsum(done) - 1) % size
        new = jax.tree.map(lambda x: x[place], pool.fresh)
        pool = Pool(pool.fresh, pool.used + done.sum(dtype=jnp.int32))

    live = trees.where(done, new[2], next_timestep)
    # The values of these three after a reset are known, so they need no selects.
    running = jnp.zeros_like(done)
    live = dataclasses.replace(live, terminated=running, truncated=running, first=done)
    streams = Streams(
        trees.where(done, new[1], env_state),
        live,
        memory,
        trees.where(done, new[0], streams.task),
        trees.where(done, jnp.zeros_like(episode_return), episode_return),
        jnp.where(done, 0, episode_length),
        jax.tree.map(lambda x: trees.where(done, jnp.zeros_like(x), x), true_return),
    )
    return streams, pool, transition, endings


def statistics(endings: Endings) -> dict[str, Any]:
    """Summarize the episodes that ended in a window [T, B]: the means of `episode_return` (with N
    agents `episode_return_0`, ...) and `episode_length`, the number of `episodes`, the mean
    `true_return` where the environment has true rewards, and the means of its `TimeStep.metrics` at
    the end of an episode."""
    mean = lambda values: m.mean(values, endings.done, axis=(0, 1))
    returns = m.by_agent("episode_return", endings.episode_return, batch=2)
    if endings.true_return is not None:
        returns |= m.by_agent("true_return", endings.true_return, batch=2)
    return {
        **{name: mean(value) for name, value in returns.items()},
        "episode_length": mean(endings.episode_length),
        "episodes": m.Sum(endings.done.sum(dtype=jnp.float32)),
    } | {name: mean(value) for name, value in endings.metrics.items()}
