"""A life of tasks, one after the other, with an evaluation of all of them after each period.

`live(algorithm, ...)` is for any algorithm whose source plays `tasks.schedule`; `lifelong_ppo` is
PPO
with components against forgetting (`jaxrl.algorithms.lifelong.shared.components`), by name.

One step of a life is a period: a whole number of the algorithm's own steps in one task, then an
evaluation in all tasks. A task lasts several periods, so a run may be saved and go on in the middle
of it. What was evaluated lies in the state, in a history of fixed size, and the metrics are those
of `jaxrl.evaluation.lifelong` so far.
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
    """Settings of a life: PPO's settings, the tasks, and the components, with the settings of
    those that are built in."""

    ppo: PPOConfig = PPOConfig()
    """How the agent learns."""
    ewc: Consolidation = Consolidation()
    """Of the component ewc."""
    replay: Rehearsal = Rehearsal()
    """Of the component replay."""
    infer: Inference = Inference()
    """Of the component infer."""

    vary: str = "task"
    """The parameter of the environment that makes the tasks."""
    values: tuple[float, ...] = static((0, 1, 2), least_length=1)
    """Its value in each task, in the order of the life."""
    windows: int = static(10, low=1)
    """Windows of experience in one period; all tasks are evaluated after each."""
    periods: int = static(2, low=1)
    """Periods of each task before the next one comes."""
    rounds: int = static(1, low=1)
    """How often the tasks are gone through."""
    episodes: int = static(16, low=1, high=MANY)
    """Episodes of each task in one evaluation."""
    greedy: bool = False
    """Evaluate the policy's most likely action rather than a sample."""
    measure: str = ""
    """What counts as performance: the name of a metric of the environment, such as success, or
    empty for the return."""

    components: tuple[str, ...] = ()
    """What helps, the first innermost: ewc, replay, infer, heads, or my_package.mine:component."""
    max_tasks: int = static(4, low=1)
    """infer, heads: how many tasks there is room for."""


@struct
class Life:
    inner: Tree
    history: worth.History
    periods: Array  # int32: lived so far

    @property
    def agent(self) -> Tree:
        """What another run may start from."""
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
    """`algorithm` living through the tasks `params` (stacked, leading axis [K]) of `env`.

    algorithm: learns from `tasks.schedule(params, windows * periods)`, one window a step.
    windows: steps of `algorithm` in one period, the step of the life. periods: of each task before
        the next. rounds: how often all tasks come; the history has room for so many, and what is
        lived beyond is trained, but not recorded.
    episodes: of each task in one evaluation, `greedy` or not. They are no part of `env_steps`.
    measure: a metric of `env` that is recorded in the place of the return.

    Metrics, each a mean over the tasks that have it (see `evaluation.lifelong`) as of the last
    step: `performance`, `forgetting`, `backward_transfer`, `forward_transfer`,
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
    """PPO with `config.components` in a life of tasks. The same arguments give the same object.

    Raises `UserError` as `ppo` does, and for a component or parameter that does not exist, and
    `heads` where nothing says which task it is.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    check(config)
    check_action_space(env.action_space, "lifelong_ppo")
    wrong = ("ppo.normalization.observation", "ppo.normalization.reward")
    why = "a life has no normalization, whose statistics would change with the task"
    settings.refuse(config, wrong, why)
    params = envs.vary(env, config.vary, _whole(config.values))
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


def _whole(values: tuple[float, ...]) -> tuple[float | int, ...]:
    """Whole numbers as integers, since parameters that count take no other."""
    return tuple(int(v) if float(v).is_integer() else v for v in values)


TINY = {
    "env": "corners", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 1,
    "minibatches": 1, "hidden": (4,), "values": (0, 2), "windows": 2, "periods": 2, "episodes": 2,
    "components": ("ewc", "replay", "infer", "heads"), "max_tasks": 3, "measure": "success",
    "ewc.samples": 2, "replay.capacity": 8, "replays": 2, "clone.steps": 1,
}  # fmt: skip
