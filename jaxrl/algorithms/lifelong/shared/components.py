"""What helps in a life of tasks, as components that plug into any agent, alone and together.

A component is functions from a noun to the same noun, each of which may be left out: the
environment as the agent sees it, the agent's settings, the agent, and its source. `plug` folds them
in the order given. A component of one's own is a value `my_package.module:name`; nothing here or in
the loop has to know it. (The framework of Sur et al., 2022, "System design for an integrated
lifelong reinforcement learning agent for real-time strategy games", arXiv:2212.04603.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl.algorithms.lifelong.shared.clone import clone
from jaxrl.algorithms.lifelong.shared.ewc import ewc
from jaxrl.algorithms.lifelong.shared.infer_task import infer_task, seen_with_task
from jaxrl.core import plugins
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Agent, Environment, Source
from jaxrl.kit import group, hyper, static
from jaxrl.sources.rehearsal import rehearsal


@group
class Consolidation:
    """Settings of ewc."""

    weight: float = hyper(1.0, low=0)
    """How strongly what earlier tasks need is held after each window."""
    decay: float = hyper(1.0, low=0, high=1)
    """How much of the earlier tasks' importance stays when another task ends."""
    samples: int = static(64, low=1, high=MANY)
    """Steps of each window that tell what the present task needs."""


@group
class Cloning:
    """Settings of cloning: what the policy was when it took the replayed steps."""

    rate: float = hyper(1e-3, low=0)
    """Step size."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of cloning the value."""
    steps: int = static(4, low=1)
    """Gradient steps after each window."""


@group
class Rehearsal:
    """Settings of replay."""

    capacity: int = static(256, low=1, high=MANY)
    """Windows of single environments that are kept."""
    replays: int = static(32, low=1, high=MANY)
    """How many of them are replayed beside each fresh window."""
    clone: Cloning = Cloning()
    """Of what the policy said then."""


@group
class Inference:
    """Settings of infer."""

    novelty: float = hyper(3.0, above=0)
    """Mean squared deviation, in variances, above which a window is a new task."""


@dataclasses.dataclass(frozen=True, eq=False)
class Component:
    """Each function gets what it changes, the environment that is played, and the life's settings
    (a `jaxrl.algorithms.lifelong.lifelong.Config`)."""

    name: str
    env: Callable[[Environment, Environment, Any], Environment] = lambda seen, env, config: seen
    settings: Callable[[Any, Environment, Any], Any] = lambda settings, env, config: settings
    agent: Callable[[Agent, Environment, Any], Agent] = lambda agent, env, config: agent
    source: Callable[[Source, Environment, Any], Source] = lambda source, env, config: source


EWC = Component(
    "ewc",
    agent=lambda agent, env, c: ewc(agent, c.ewc.weight, c.ewc.decay, c.ewc.samples, "ewc."),
)

REPLAY = Component(
    "replay",
    settings=lambda settings, env, c: dataclasses.replace(
        settings, record=tuple(dict.fromkeys((*settings.record, "logits", "value")))
    ),
    agent=lambda agent, env, c: clone(
        agent,
        c.ppo.rollouts.num_envs,
        c.replay.clone.rate,
        c.replay.clone.value_weight,
        c.replay.clone.steps,
        "replay.clone.",
    ),
    source=lambda source, env, c: rehearsal(source, c.replay.capacity, c.replay.replays),
)

INFER = Component(
    "infer",
    env=lambda seen, env, c: seen_with_task(seen, c.max_tasks),
    agent=lambda agent, env, c: infer_task(
        agent, env, c.max_tasks, c.ppo.rollouts.num_envs, c.infer.novelty, "infer."
    ),
)

HEADS = Component(
    "heads",
    settings=lambda settings, env, c: dataclasses.replace(settings, heads=c.max_tasks),
)

BUILT_IN = {
    "ewc": "jaxrl.algorithms.lifelong.shared.components:EWC",
    "heads": "jaxrl.algorithms.lifelong.shared.components:HEADS",
    "infer": "jaxrl.algorithms.lifelong.shared.components:INFER",
    "replay": "jaxrl.algorithms.lifelong.shared.components:REPLAY",
}


def find(name: str) -> Component:
    """The component called `name`. Raises `UserError` where there is none, and where
    `my_package.module:name` is something else."""
    found = plugins.find("component", name, BUILT_IN, lambda x: isinstance(x, Component))
    if not isinstance(found, Component):
        raise UserError(f"'{name}' is a {type(found).__name__}; it must be a Component.")
    return found


def plug(
    components: Sequence[Component],
    env: Environment,
    settings: Any,
    config: Any,
    build: Callable[[Environment, Any], Agent],
    source: Source,
) -> tuple[Agent, Source]:
    """The agent `build(env, settings)` and `source` with all `components`, the first innermost.
    Raises `UserError` where one is given twice, and what building raises."""
    names = [component.name for component in components]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"The component '{name}' is there twice; once is enough.")
    seen = env
    for component in components:
        seen = component.env(seen, env, config)
        settings = component.settings(settings, env, config)
    agent = build(seen, settings)
    for component in components:
        agent = component.agent(agent, env, config)
        source = component.source(source, env, config)
    return agent, source
