"""Which task is this? Inferred from what is observed, where nobody says it.

Each task found so far is a diagonal normal distribution of observations (and told goals). A window
that no known one explains begins a new task; when acting, a stream plays the task under which all
it has observed in this episode is likeliest. This is context detection as in da Silva et al. (2006,
"Dealing with non-stationary environments using context detection") and change detection by
likelihood, with the observations' own distribution in the place of a model of the dynamics: for
tasks that look different. Tasks that differ in rewards alone it cannot tell apart.
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
    """What each of [K] tasks looks like; those from `known` on are still free."""

    mean: Array  # [K, D]
    square: Array  # [K, D]: second moments
    windows: Array  # int32 [K]: seen of each
    known: Array  # int32


@struct
class Belief:
    """The memory of one stream, leading axis [B]."""

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
    """`agent` (built for `seen_with_task(env, tasks)`), told a task that is inferred: a one-hot
    [tasks] in the goal channel behind what that holds already, and the id in `transitions.task`.

    tasks: K, how many can be told apart at most; once all are found, a new one is taken for the
        nearest.
    novelty: mean squared deviation, in variances, above which a window [T, B] of the
        first `num_envs` (B) streams is a task never seen. About 1 for a known one.
    path: what the name of the hyperparameter `novelty` begins with.

    Windows are learned from under the ids that they have once the window itself is known, so the
    first window of a new task already counts as such.
    """

    def features(timestep: TimeStep) -> Array:
        return encoders.features(env.observation_space, timestep)

    def nothing(state):
        timestep = example_timestep(env, agents=True)
        zero = jnp.zeros((tasks, features(timestep).shape[-1]))
        return Models(zero, zero, jnp.zeros(tasks, jnp.int32), jnp.int32(0))

    def act(state, timestep, memory, key, greedy):
        surprise = memory.surprise + surprises(state.own, features(timestep))
        told = _tell(timestep, _likeliest(state.own, surprise), tasks)
        action, inner, extras = agent.act(state.agent, told, memory.agent, key, greedy)
        return action, Belief(inner, surprise), extras

    def update(state, batch, key):
        window = features(batch.transitions.timestep)
        models = learn_window(state.own, window[:, :num_envs], state.hyper[f"{path}novelty"])

        def judge(surprise, step):
            first, x = step
            surprise = jnp.where(first[:, None], 0.0, surprise) + surprises(models, x)
            return surprise, surprise

        last, surprise = jax.lax.scan(
            judge, batch.memory.surprise, (batch.transitions.first, window)
        )
        task = _likeliest(models, surprise)
        transitions = dataclasses.replace(
            batch.transitions,
            timestep=_tell(batch.transitions.timestep, task, tasks),
            # What follows within the episode is the same task.
            next_timestep=_tell(batch.transitions.next_timestep, task, tasks),
            task=task,
        )
        tail = batch.tail
        if tail is not None:
            surprise = jnp.where(tail[0].first[:, None], 0.0, last)
            surprise += surprises(models, features(tail[0]))
            tail = _tell(tail[0], _likeliest(models, surprise), tasks), tail[1].agent
        told = dataclasses.replace(
            batch, transitions=transitions, memory=batch.memory.agent, tail=tail
        )
        inner, info = agent.update(state.agent, told, key)
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


def seen_with_task(env: Environment, tasks: int) -> Environment:
    """`env` as an agent sees it that is told an inferred task: a one-hot [tasks], here of zeros, at
    the end of its goal channel. For building that agent; what is played stays `env`."""

    def seen(result):
        state, timestep = result
        return state, _tell(timestep, jnp.full(timestep.first.shape, -1), tasks)

    return dataclasses.replace(
        env,
        reset=lambda key, params: seen(env.reset(key, params)),
        step=lambda key, state, action, params: seen(env.step(key, state, action, params)),
    )


def _tell(timestep: TimeStep, task: Array, tasks: int) -> TimeStep:
    one_hot = jax.nn.one_hot(task, tasks)
    goal = one_hot if timestep.goal is None else (timestep.goal, one_hot)
    return dataclasses.replace(timestep, goal=goal)


def _variance(models: Models) -> Array:
    # Features lie about in [-1, 1]; what never varies may still vary a little.
    return jnp.maximum(models.square - models.mean**2, 0.0) + 0.01


def surprises(models: Models, x: Array) -> Array:
    """How unlikely each task makes `x` [..., D], up to a constant: [..., K]."""
    variance = _variance(models)
    deviation = (x[..., None, :] - models.mean) ** 2 / variance
    return 0.5 * (deviation + jnp.log(variance)).sum(-1)


def _likeliest(models: Models, surprise: Array) -> Array:
    """The known task [...] with the least of `surprise` [..., K]; 0 before any is known."""
    known = jnp.arange(surprise.shape[-1]) < models.known
    return jnp.argmin(jnp.where(known, surprise, jnp.inf), -1).astype(jnp.int32)


def learn_window(models: Models, x: Array, novelty: Array | float) -> Models:
    """`models` once they have seen the window `x` [T, B, D], all of one task."""
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
