"""Evaluation of policies in complete episodes, each counted exactly once."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import stream, trees
from jaxrl.core.devices import spread
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, is_space
from jaxrl.core.types import Array, Environment, Key, Policy, Tasks, TimeStep, struct
from jaxrl.tasks.basic import fixed


def check_same_spaces(env: Environment, other: Environment) -> None:
    """Raise `UserError` unless a policy trained in `env` can act in `other`."""

    def plain(x):  # bounds may differ
        return (x.shape, str(jnp.dtype(x.dtype))) if isinstance(x, Box) else x

    def observation(env):
        timestep = jax.eval_shape(lambda key: env.reset(key, env.params)[1], jax.random.key(0))
        return jax.tree.map(lambda x: (x.shape, str(x.dtype)), timestep.observation)

    for what, a, b in (
        ("observations", observation(env), observation(other)),
        ("actions", *(jax.tree.map(plain, e.action_space, is_leaf=is_space) for e in (env, other))),
    ):
        if a != b:
            raise UserError(
                f"A policy trained in '{env.name}' cannot act in '{other.name}': their {what} "
                f"differ ({a} and {b})."
            )


@struct
class Episodes:
    """Results of episodes; all arrays are [episodes]."""

    returns: Array  # float32: undiscounted sum of rewards
    lengths: Array  # int32: number of steps
    finished: Array  # bool: whether the episode ended within the allowed steps
    # The environment's metrics at the episode's end, and `true_return` where it has true rewards.
    metrics: dict[str, Array]
    last: TimeStep | None = None  # the last time step
    true_return: Array | None = None  # undiscounted sum of true rewards, if there are any


def episode_limit(env: Environment, max_steps: int | None = None) -> int:
    """Maximum number of steps of an episode: `max_steps`, or else the environment's own limit.
    Raise `UserError` if there is neither."""
    limit = max_steps or env.max_steps
    if limit is None:
        raise UserError(f"'{env.name}' has no time limit; set max_steps to evaluate in it.")
    return limit


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5, 6))
def evaluate(
    env: Environment,
    policy: Policy,
    key: Key,
    episodes: int = 32,
    greedy: bool = True,
    max_steps: int | None = None,
    tasks: Tasks | None = None,
) -> Episodes:
    """Play `episodes` episodes side by side, from their first step to their end.

    Stops when all have ended, and no later than after `max_steps` (by default the environment's
    own limit). Another state of the same policy does not compile again. Raises `UserError` if there
    is no limit at all.
    """
    max_steps = episode_limit(env, max_steps)
    if episodes < 1:
        raise UserError(f"episodes must be at least 1, got {episodes}.")
    tasks = tasks or fixed(env.params)
    task_key, start_key, key = jax.random.split(key, 3)
    task_state = tasks.init(task_key, policy, tasks.hyper)
    streams = spread(stream.start(env, tasks, task_state, policy, start_key, episodes))
    # Steps after an environment's first episode do not count, so all restart from the first start.
    starts = (streams.task, streams.env_state, streams.timestep)
    pool = stream.Pool(jax.tree.map(lambda x: x[:1], starts), jnp.int32(0))

    def add(total, reward, running):
        if total is None:
            return None
        return total + trees.where(running, reward, jnp.zeros_like(total))

    def body(carry):
        step, streams, record = carry
        running = ~record.finished
        streams, _, transition, _ = stream.advance(
            env,
            tasks,
            task_state,
            streams,
            policy,
            stream.step_input(jax.random.fold_in(key, step), step),
            greedy,
            pool,
        )
        record = Episodes(
            record.returns
            + trees.where(running, transition.reward, jnp.zeros_like(record.returns)),
            record.lengths + running,
            record.finished | transition.next_timestep.done,
            {},
            trees.where(running, transition.next_timestep, record.last),
            add(record.true_return, transition.next_timestep.true_reward, running),
        )
        return step + 1, streams, record

    truth = streams.timestep.true_reward
    record = Episodes(
        jnp.zeros_like(streams.timestep.reward),
        jnp.zeros(episodes, jnp.int32),
        jnp.zeros(episodes, bool),
        {},
        streams.timestep,
        None if truth is None else jnp.zeros_like(truth),
    )
    going = lambda carry: (carry[0] < max_steps) & ~jnp.all(carry[2].finished)
    record = jax.lax.while_loop(going, body, (jnp.int32(0), streams, record))[2]
    metrics = {} if record.last is None else record.last.metrics or {}
    if record.true_return is not None:
        metrics = m.by_agent("true_return", record.true_return) | metrics
    return dataclasses.replace(record, metrics=metrics)
