"""Components against forgetting that plug into any agent, alone and in combination.

A component consists of optional functions that each change one thing: the environment as the agent
sees it, the agent's settings, the agent, or its source. `plug` applies them in the order given.
Users refer to their own component as `my_package.module:name`; nothing here or in the training loop
has to know it. (The framework of Sur et al., 2022, "System design for an integrated lifelong
reinforcement learning agent for real-time strategy games", arXiv:2212.04603.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl.algorithms.lifelong.shared.clone import clone
from jaxrl.algorithms.lifelong.shared.ewc import ewc
from jaxrl.algorithms.lifelong.shared.infer_task import add_task_to_goal, infer_task
from jaxrl.core import plugins
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Agent, Environment, Source
from jaxrl.kit import group, hyper, static
from jaxrl.sources.rehearsal import rehearsal


@group
class Consolidation:
    """Settings of elastic weight consolidation."""

    weight: float = hyper(1.0, low=0)
    """Strength of the pull toward the parameters that earlier tasks need, after each window."""
    decay: float = hyper(1.0, low=0, high=1)
    """Factor of the earlier tasks' importance whenever another task ends."""
    samples: int = static(64, low=1, high=MANY)
    """Number of steps per window for estimating the importance of parameters in the current
    task."""


@group
class Cloning:
    """Settings of cloning the policy that took the replayed steps."""

    rate: float = hyper(1e-3, low=0)
    """Step size of cloning."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of cloning the value relative to cloning the policy."""
    steps: int = static(4, low=1)
    """Gradient steps of cloning after each window."""


@group
class Rehearsal:
    """Settings of replaying windows of earlier tasks."""

    capacity: int = static(256, low=1, high=MANY)
    """Capacity of the replay buffer, in windows of a single environment."""
    replays: int = static(32, low=1, high=MANY)
    """Number of stored windows replayed with each fresh window."""
    clone: Cloning = Cloning()
    """Settings of cloning the policy's recorded outputs."""


@group
class Inference:
    """Settings of task inference."""

    novelty: float = hyper(3.0, above=0)
    """Mean squared deviation, in variances, above which a window counts as a new task."""


@dataclasses.dataclass(frozen=True, eq=False)
class Component:
    """Component of a lifelong agent.

    Each function takes the object that it changes, the environment that is played, and the settings
    of the life (a `jaxrl.algorithms.lifelong.lifelong_ppo.Config`).
    """

    name: str
    env: Callable[[Environment, Environment, Any], Environment] = lambda seen, env, config: seen
    settings: Callable[[Any, Environment, Any], Any] = lambda settings, env, config: settings
    agent: Callable[[Agent, Environment, Any], Agent] = lambda agent, env, config: agent
    source: Callable[[Source, Environment, Any], Source] = lambda source, env, config: source


EWC = Component(
    "ewc",
    agent=lambda agent, env, c: ewc(agent, c.ewc.weight, c.ewc.decay, c.ewc.samples, "ewc."),
)


def _record_choices(settings: Any, env: Environment, config: Any) -> Any:
    """Let PPO record what `clone` learns from. Raises `UserError` unless actions are discrete."""
    if not isinstance(env.action_space, Discrete):
        raise UserError(
            f"The component replay clones logits, which only discrete actions have; '{env.name}' "
            f"has {env.action_space!r}. Leave replay out of `components`."
        )
    return dataclasses.replace(
        settings, record=tuple(dict.fromkeys((*settings.record, "logits", "value")))
    )


REPLAY = Component(
    "replay",
    settings=_record_choices,
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
    env=lambda seen, env, c: add_task_to_goal(seen, c.max_tasks),
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
    """Return the component `name`. Raises `UserError` if there is none, and if
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
    """Return the agent `build(env, settings)` and `source` with all `components` applied, the first
    innermost. Raises `UserError` for a component given twice, and whatever `build` raises."""
    names = [component.name for component in components]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"The component '{name}' is given twice; once is enough.")
    seen = env
    for component in components:
        seen = component.env(seen, env, config)
        settings = component.settings(settings, env, config)
    agent = build(seen, settings)
    for component in components:
        agent = component.agent(agent, env, config)
        source = component.source(source, env, config)
    return agent, source
