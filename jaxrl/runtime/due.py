"""Settings that never come due in the steps of a run: periods, delays, schedules, warm-ups."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from jaxrl.algorithms import registry as algorithms
from jaxrl.core import settings
from jaxrl.core.types import Algorithm
from jaxrl.kit import AlgorithmBuilder
from jaxrl.runtime.building import plan
from jaxrl.runtime.configuration import Experiment

PERIODS = {  # last part of a setting's name -> what happens once in so many updates
    "period": "the target network never moves",
    "chain_period": "the target networks never move",
    "delay": "the policy is never updated",
}
SCHEDULES = {  # last two parts, or the last part -> what changes over so many environment steps
    "exploration.steps": "the probability of a random action",
    "learning_rate_steps": "the step size",
    "importance_steps": "the exponent of the importance weights",
    "temperature_steps": "the temperature",
}


def never_due(
    config: Experiment, algorithm: Algorithm, varied: Collection[str] = ()
) -> Iterator[str]:
    """Yield a sentence for each setting that has no effect, or not all of it, in `config.steps`.

    algorithm: the algorithm of `config`. varied: settings of the agent that members set themselves.
    """
    builder, _ = algorithms.builder(config.algorithm)
    updates = None
    if isinstance(builder, AlgorithmBuilder):
        updates = plan(config, algorithm).total * builder.updates(config.agent)
    for name, _, value in settings.walk(config.agent):
        last = name.rpartition(".")[2]
        ending = ".".join(name.split(".")[-2:])
        if name in varied or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        what = SCHEDULES.get(ending) or SCHEDULES.get(last)
        if last in PERIODS and updates is not None and value > updates:
            yield (
                f"agent.{name} is {value:,}, but this run makes {updates:,} "
                f"{'update' if updates == 1 else 'updates'}: {PERIODS[last]}."
            )
        elif what and math.isfinite(value) and value > config.steps:
            share = config.steps / value
            part = f"only {share:.0%}" if share >= 0.01 else "less than 1%"
            yield (
                f"agent.{name} is {value:,.0f}, but this run has {config.steps:,} steps: {what} "
                f"goes {part} of its way."
            )
        elif last == "critic_steps" and value >= config.steps:
            yield (
                f"agent.{name} is {value:,.0f}, but this run has {config.steps:,} steps: the "
                "policy is never updated."
            )
        elif last == "warmup" and algorithm.initial_env_steps >= config.steps:
            yield (
                f"agent.{name} is {value:,}, but this run has {config.steps:,} steps: it ends "
                "after one round of updates."
            )
