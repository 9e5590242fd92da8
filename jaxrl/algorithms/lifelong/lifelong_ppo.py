"""Lifelong PPO: a life of successive tasks, with an evaluation in all of them after each period.

`live(algorithm, ...)` works with any algorithm whose source plays `tasks.schedule`; `lifelong_ppo`
is PPO with components against forgetting (`jaxrl.algorithms.lifelong.shared.components`), selected
by name.

One step of a life is a period: a whole number of the algorithm's own steps in one task, then an
evaluation in all tasks. A task lasts several periods, so a run can be saved and resumed in the
middle of it. The state holds the results of the evaluations in a history of fixed size, and the
metrics are those of `jaxrl.evaluation.lifelong` so far.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.algorithms.lifelong.shared.components import (
    Consolidation,
    Inference,
    Rehearsal,
    find,
    plug,
)
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import metrics as m
from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.hyper import MANY, check
from jaxrl.core.learn import learn
from jaxrl.core.types import REPLICATED, Algorithm, Array, Environment, Key, Policy, Tree, struct
from jaxrl.envs import registry as envs
from jaxrl.evaluation import lifelong as worth
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import group, static
from jaxrl.kit.wrapping import within
from jaxrl.networks.heads import check_action_space
from jaxrl.tasks.basic import count, each, schedule


@group
class Config:
    """Settings of lifelong PPO: PPO's, the tasks, the components, and the settings of the built-in
    components."""

    ppo: PPOConfig = PPOConfig()
    """Settings of the PPO agent that learns."""
    ewc: Consolidation = Consolidation()
    """Settings of the component ewc."""
    replay: Rehearsal = Rehearsal()
    """Settings of the component replay."""
    infer: Inference = Inference()
    """Settings of the component infer."""

    vary: str = "task"
    """Name of the environment parameter that distinguishes the tasks."""
    values: tuple[float, ...] = static((0, 1, 2), least_length=1)
    """Values of the varied parameter, one per task, in the order of the tasks."""
    windows: int = static(10, low=1)
    """Windows of experience in one period; all tasks are evaluated after each period."""
    periods: int = static(2, low=1)
    """Periods of each task before the next one begins."""
    rounds: int = static(1, low=1)
    """Number of passes through all tasks."""
    episodes: int = static(16, low=1, high=MANY)
    """Episodes per task in one evaluation."""
    greedy: bool = False
    """Evaluate the policy's most likely action rather than a sample."""
    measure: str = ""
    """Metric of the environment that counts as performance, such as success; empty for the
    return."""

    components: tuple[str, ...] = ()
    """Components against forgetting, the first innermost: ewc, replay, infer, heads, or
    my_package.mine:component."""
    max_tasks: int = static(4, low=1)
    """Maximum number of tasks, for the components infer and heads."""


@struct
class Life:
    """State of a life: that of the algorithm, and the results of the evaluations."""

    inner: Tree
    history: worth.History
    periods: Array  # int32: completed so far

    @property
    def agent(self) -> Tree:
        """State of the agent, for a warm start of another run."""
        return self.inner.agent


def live(
    algorithm: Algorithm,
    env: Environment,
    params: Tree,
    windows: int,
    periods: int,
    rounds: int = 1,
    episodes: int = 16,
    greedy: bool = False,
    measure: str = "",
) -> Algorithm:
    """Run `algorithm` through the tasks `params` (stacked, leading axis [K]) of `env`.

    algorithm: learns from `tasks.schedule(params, windows * periods)`, one window per step.
    windows: steps of `algorithm` in one period, which is one step of the life.
    periods: periods of each task before the next.
    rounds: passes through all tasks. The history has room for this many; periods beyond them train
        the agent but are not recorded.
    episodes: episodes per task in one evaluation, `greedy` or not. They do not count as
        `env_steps`.
    measure: a metric of `env` to record instead of the return.

    Metrics, each a mean over the tasks for which it is defined (see `evaluation.lifelong`) as of
    the last step: `performance`, `forgetting`, `backward_transfer`, `forward_transfer`,
    `performance_maintenance`; the return in each task, `return_task_0` ...; and the task, `task`.
    Raises `UserError` for numbers below 1.
    """
    numbers = {"windows": windows, "periods": periods, "rounds": rounds, "episodes": episodes}
    for name, value in numbers.items():
        if value < 1:
            raise UserError(f"{name} of a life must be at least 1, got {value}.")
    number = count(params)
    tasks = each(params)

    def returns(policy: Policy, key: Key) -> Array:
        played = evaluate(env, policy, key, episodes * number, greedy, tasks=tasks)
        if measure and measure not in played.metrics:
            raise unknown(f"metric of '{env.name}'", measure, played.metrics)
        values = played.metrics[measure] if measure else played.returns
        return values.reshape(episodes, number).mean(0)

    def init(key, hyper):
        key, evaluation_key = jax.random.split(key)
        inner = algorithm.init(key, hyper)
        history = worth.empty_history(rounds * number * periods + 1, number)
        first = returns(algorithm.policy(inner), evaluation_key)
        return Life(inner, worth.record(history, jnp.int32(0), first, worth.NONE), jnp.int32(0))

    def step(state, key):
        key, evaluation_key = jax.random.split(key)
        inner, metrics = jax.lax.scan(algorithm.step, state.inner, jax.random.split(key, windows))
        task = (state.periods // periods) % number
        now = returns(algorithm.policy(inner), evaluation_key)
        history = worth.record(state.history, state.periods + 1, now, task)
        inner_row = m.reduce(metrics)
        first = inner_row["diverged"].step  # of the windows
        first = jnp.where(first == m.NEVER, first, first // windows)
        report = inner_row | {"diverged": m.First(first)}
        report |= {f"return_task_{i}": m.mean(now[i]) for i in range(number)}
        report |= {
            "task": m.mean(task),
            "performance": worth.performance(history).mean(),
            "forgetting": worth.forgetting(history).mean(),
            "backward_transfer": worth.backward_transfer(history).mean(),
            "forward_transfer": worth.forward_transfer(history).mean(),
            "performance_maintenance": worth.performance_maintenance(history).mean(),
        }
        return Life(inner, history, state.periods + 1), report

    return dataclasses.replace(
        algorithm,
        name=f"life of {number} tasks, {algorithm.name}",
        init=init,
        step=step,
        policy=lambda state: algorithm.policy(state.inner),
        measure=lambda state, key: algorithm.measure(state.inner, key),
        env_steps=algorithm.env_steps * windows,
        partition=Life(algorithm.partition, REPLICATED, REPLICATED),
        agent=None,
        source=None,
        scores={"performance": "performance", "forgetting": "forgetting"},
    )


def lifelong_ppo(env: Environment, config: Config = Config()) -> Algorithm:
    """Build PPO with `config.components` in a life of tasks. The same arguments give the same
    object.

    Raises `UserError` where `ppo` does, for a component or parameter that does not exist, and for
    `heads` if no time step identifies the task.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    check(config)
    check_action_space(env.action_space, "lifelong_ppo")
    wrong = ("ppo.normalization.observation", "ppo.normalization.reward")
    why = "a life has no normalization, whose statistics would change with the task"
    settings.refuse(config, wrong, why)
    params = envs.vary(env, config.vary, whole_numbers(config.values))
    source = config.ppo.rollouts.source(env, schedule(params, config.windows * config.periods))
    build = lambda env, config: within(ppo.agent(env, config), "ppo")
    parts = [find(name) for name in config.components]
    agent, source = plug(parts, env, config.ppo, config, build, source)
    shards = config.ppo.rollouts.num_shards
    algorithm = dataclasses.replace(learn(agent, source), config=config, num_shards=shards)
    return live(
        algorithm,
        env,
        params,
        config.windows,
        config.periods,
        config.rounds,
        config.episodes,
        config.greedy,
        config.measure,
    )


def whole_numbers(values: tuple[float, ...]) -> tuple[float | int, ...]:
    """Convert whole numbers to integers, which parameters that count require."""
    return tuple(int(v) if float(v).is_integer() else v for v in values)


TINY = {
    "env": "corners", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 1,
    "minibatches": 1, "hidden": (4,), "values": (0, 2), "windows": 2, "periods": 2, "episodes": 2,
    "components": ("ewc", "replay", "infer", "heads"), "max_tasks": 3, "measure": "success",
    "ewc.samples": 2, "replay.capacity": 8, "replays": 2, "clone.steps": 1,
}  # fmt: skip
