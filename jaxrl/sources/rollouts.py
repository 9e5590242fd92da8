"""Rollouts: a batch is the window of experience that was just collected."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxrl.core import metrics as m
from jaxrl.core import stream
from jaxrl.core.devices import BATCH
from jaxrl.core.errors import UserError
from jaxrl.core.types import (
    REPLICATED,
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    Tasks,
    Tree,
    struct,
)
from jaxrl.sources.handed import host_source
from jaxrl.tasks.basic import fixed

SPLIT: Any = PartitionSpec(BATCH)  # of arrays whose leading axis is that of the environments


def check_shards(num_shards: int, **sizes: int) -> None:
    """Raise `UserError` unless `num_shards` divides each of the `sizes`."""
    for name, size in sizes.items():
        if size % num_shards:
            raise UserError(f"{name}={size} does not divide into num_shards={num_shards}.")


def check_tasks(env: Environment, tasks: Tasks | None) -> None:
    """Raise `UserError` for tasks of an environment on the host, which has no parameters."""
    if env.host and tasks is not None:
        raise UserError(
            f"'{env.name}' runs on the host and has no parameters that tasks could vary."
        )


def window(source: Source, state: Tree, policy: Policy, key: Key) -> tuple[Tree, Batch, dict]:
    """Collect one window of `source`, as a batch without memory and tail, for sources that hand out
    old windows beside it. Returns the state, the batch and metrics."""
    state, fresh, metrics = source.collect(state, policy, key)
    batch = source.sample(state, fresh, key)
    return state, dataclasses.replace(batch, memory=None, tail=None), metrics


def score_tasks(tasks: Tasks, state: Tree, batch: Batch, feedback: Mapping[str, Tree]) -> Tree:
    """Return the state of `tasks` after an update fed back the `score` of the steps of a batch, or
    the same state if it fed back none."""
    if "score" not in feedback:
        return state
    return tasks.feedback(state, batch.transitions.task, feedback["score"], batch.mask)


@struct
class RolloutState:
    """State of a source of rollouts."""

    streams: stream.Streams
    tasks: Tree
    windows: Array
    """Windows so far: int32."""


def rollouts(
    env: Environment,
    num_envs: int,
    num_steps: int,
    tasks: Tasks | None = None,
    reset_pool: int | None = None,
) -> Source:
    """Collect windows of `num_steps` (T) steps of `num_envs` (B) streams.

    Streams go on across windows. A batch holds transitions [T, B], the memory at the start of the
    window, and the tail.

    tasks: the environment parameters of episodes; the environment's own by default. They hear the
        `score` [T, B] of an update.
    reset_pool: number of new episodes that are drawn ahead for each window, instead of one for
        every stream and step, for environments whose reset is expensive. If a window needs more
        they are reused, and the metric `resets_reused` counts how many.

    Raises `UserError` for sizes below 1, and for a pool with tasks that go by the stream's place.
    """
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "reset_pool": reset_pool}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, got {value}.")
    check_tasks(env, tasks)
    tasks = tasks or fixed(env.params)
    if reset_pool is not None and tasks.by_place:
        raise UserError(
            f"reset_pool is {reset_pool}, but the tasks '{tasks.name}' go by an episode's place "
            "among the streams, which a pool mixes up; leave out one of the two."
        )
    env_steps = num_envs * num_steps

    def init(key, hyper, policy):
        task_key, stream_key = jax.random.split(key)
        task_state = tasks.init(task_key, policy, hyper)
        streams = stream.start(env, tasks, task_state, policy, stream_key, num_envs)
        return RolloutState(streams, task_state, jnp.int32(0))

    def collect(state, policy, key):
        pool_key, key = jax.random.split(key)
        pool = None
        if reset_pool is not None:
            pool = stream.pool(env, tasks, state.tasks, pool_key, reset_pool)

        def body(carry, step_input):
            streams, pool = carry
            streams, pool, transition, endings = stream.advance(
                env, tasks, state.tasks, streams, policy, step_input, pool=pool
            )
            return (streams, pool), (transition, endings)

        (streams, pool), (transitions, endings) = jax.lax.scan(
            body, (state.streams, pool), stream.step_inputs(key, num_steps)
        )
        statistics = stream.statistics(endings)
        if pool is not None and reset_pool is not None:
            reused = jnp.maximum(pool.used - reset_pool, 0)
            statistics["resets_reused"] = m.Sum(reused.astype(jnp.float32))
        windows = state.windows + 1
        batch = Batch(
            transitions,
            env_steps=windows.astype(jnp.float32) * env_steps,
            memory=state.streams.memory,
            tail=(streams.timestep, streams.memory),
        )
        task_state = tasks.update(state.tasks, policy, transitions)
        return RolloutState(streams, task_state, windows), batch, statistics

    def feedback(state, batch, feedback):
        return dataclasses.replace(state, tasks=score_tasks(tasks, state.tasks, batch, feedback))

    source = Source(
        f"rollouts({env.name})",
        init,
        jax.jit(collect),  # traced once: for shapes, for filling a replay buffer, and for the loop
        sample=lambda state, fresh, key: fresh,
        feedback=feedback,
        env_steps=env_steps,
        num_envs=num_envs,
        hyper=dict(tasks.hyper),
        partition=RolloutState(SPLIT, REPLICATED, REPLICATED),
    )
    return host_source(source, env) if env.host else source
