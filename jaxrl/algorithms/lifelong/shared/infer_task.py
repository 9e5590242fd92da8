"""Inference of the task from observations, where the environment does not identify it.

Each task found so far is a diagonal normal distribution of observations (and given goals). A window
that no known task explains begins a new one; when acting, a stream assumes the task under which its
observations in this episode are most likely. This is context detection as in da Silva et al. (2006,
"Dealing with non-stationary environments using context detection") and change detection by
likelihood, with the distribution of observations in place of a model of the dynamics: it is for
tasks that look different, and cannot distinguish tasks that differ in rewards alone.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Agent, Array, Environment, TimeStep, Tree, struct
from jaxrl.kit.wrapping import wrap
from jaxrl.networks import encoders

RATE = 0.05  # of the running moments of a known task, so that they follow a policy that learns


@struct
class Models:
    """Distributions of the observations of [K] tasks; those from index `known` on are unused."""

    mean: Array  # [K, D]
    square: Array  # [K, D]: second moments
    windows: Array  # int32 [K]: number of windows of each task
    known: Array  # int32: number of tasks found


@struct
class Belief:
    """Memory of each stream, leading axis [B]."""

    agent: Tree
    surprise: Array  # [B, K]: minus log-likelihood of the episode so far, up to a constant


def infer_task(
    agent: Agent,
    env: Environment,
    tasks: int,
    num_envs: int,
    novelty: float = 3.0,
    path: str = "infer.",
) -> Agent:
    """Wrap `agent` (built for `add_task_to_goal(env, tasks)`) to see an inferred task: a one-hot
    [tasks] in the goal channel, after the existing goal, and the id in `transitions.task`.

    tasks: maximum number of tasks (K); once all are found, a new one is mistaken for the nearest.
    novelty: mean squared deviation, in variances, above which a window [T, B] of the first
        `num_envs` (B) streams is a new task. It is about 1 for a known one.
    path: prefix of the name of the hyperparameter `novelty`.

    Task ids are inferred after the models have been updated by the window itself, so the first
    window of a new task already counts as such.
    """

    def features(timestep: TimeStep) -> Array:
        return encoders.features(env.observation_space, timestep)

    def nothing(state):
        timestep = example_timestep(env, agents=True)
        zero = jnp.zeros((tasks, features(timestep).shape[-1]))
        return Models(zero, zero, jnp.zeros(tasks, jnp.int32), jnp.int32(0))

    def act(state, timestep, memory, key, greedy):
        surprise = memory.surprise + surprises(state.own, features(timestep))
        timestep = _append_task(timestep, _likeliest(state.own, surprise), tasks)
        action, inner, extras = agent.act(state.agent, timestep, memory.agent, key, greedy)
        return action, Belief(inner, surprise), extras

    def update(state, batch, key):
        window = features(batch.transitions.timestep)
        models = learn_window(state.own, window[:, :num_envs], state.hyper[f"{path}novelty"])

        def accumulate(surprise, step):
            first, x = step
            surprise = jnp.where(first[:, None], 0.0, surprise) + surprises(models, x)
            return surprise, surprise

        last, surprise = jax.lax.scan(
            accumulate, batch.memory.surprise, (batch.transitions.first, window)
        )
        task = _likeliest(models, surprise)
        transitions = dataclasses.replace(
            batch.transitions,
            timestep=_append_task(batch.transitions.timestep, task, tasks),
            # The rest of the episode is the same task.
            next_timestep=_append_task(batch.transitions.next_timestep, task, tasks),
            task=task,
        )
        tail = batch.tail
        if tail is not None:
            surprise = jnp.where(tail[0].first[:, None], 0.0, last)
            surprise += surprises(models, features(tail[0]))
            tail = _append_task(tail[0], _likeliest(models, surprise), tasks), tail[1].agent
        batch = dataclasses.replace(
            batch, transitions=transitions, memory=batch.memory.agent, tail=tail
        )
        inner, info = agent.update(state.agent, batch, key)
        metrics = info.metrics | {"tasks_found": models.known.astype(jnp.float32)}
        return inner, models, dataclasses.replace(info, metrics=metrics)

    return wrap(
        agent,
        "infer_task",
        nothing,
        update,
        act=act,
        hyper={f"{path}novelty": novelty},
        memory=lambda n: Belief(agent.memory(n), jnp.zeros((n, tasks))),
    )


def add_task_to_goal(env: Environment, tasks: int) -> Environment:
    """Return `env` with a task one-hot [tasks], here of zeros, at the end of its goal channel.

    It serves to build the agent that `infer_task` wraps; the environment that is played stays
    `env`.
    """

    def add_task(result):
        state, timestep = result
        return state, _append_task(timestep, jnp.full(timestep.first.shape, -1), tasks)

    return dataclasses.replace(
        env,
        reset=lambda key, params: add_task(env.reset(key, params)),
        step=lambda key, state, action, params: add_task(env.step(key, state, action, params)),
    )


def _append_task(timestep: TimeStep, task: Array, tasks: int) -> TimeStep:
    one_hot = jax.nn.one_hot(task, tasks)
    goal = one_hot if timestep.goal is None else (timestep.goal, one_hot)
    return dataclasses.replace(timestep, goal=goal)


def _variance(models: Models) -> Array:
    # Features lie roughly in [-1, 1]; a feature that never varied may still vary a little.
    return jnp.maximum(models.square - models.mean**2, 0.0) + 0.01


def surprises(models: Models, x: Array) -> Array:
    """Return the negative log-likelihood [..., K] of `x` [..., D] under each task, up to a
    constant."""
    variance = _variance(models)
    deviation = (x[..., None, :] - models.mean) ** 2 / variance
    return 0.5 * (deviation + jnp.log(variance)).sum(-1)


def _likeliest(models: Models, surprise: Array) -> Array:
    """Return the known task [...] with the least `surprise` [..., K]; 0 if none is known."""
    known = jnp.arange(surprise.shape[-1]) < models.known
    return jnp.argmin(jnp.where(known, surprise, jnp.inf), -1).astype(jnp.int32)


def learn_window(models: Models, x: Array, novelty: Array | float) -> Models:
    """Update `models` by the window `x` [T, B, D], all of one task."""
    number = models.windows.shape[0]
    deviation = ((x[..., None, :] - models.mean) ** 2 / _variance(models)).mean((0, 1, 3))
    deviation = jnp.where(jnp.arange(number) < models.known, deviation, jnp.inf)
    new = (deviation.min() > novelty) & (models.known < number)
    task = jnp.where(new, models.known, jnp.argmin(deviation))
    mine = jnp.arange(number) == task
    rate = jnp.maximum(RATE, 1.0 / (models.windows[task] + 1))
    toward = lambda old, now: jnp.where(mine[:, None], old + rate * (now - old), old)
    return Models(
        toward(models.mean, x.mean((0, 1))),
        toward(models.square, (x**2).mean((0, 1))),
        models.windows + mine,
        models.known + new.astype(jnp.int32),
    )
