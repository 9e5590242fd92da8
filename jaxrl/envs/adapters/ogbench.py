"""Environments of OGBench (Park et al., 2025, arXiv:2410.20092), such as
`ogbench/pointmaze-medium-v0`.

They run on the host, as Gymnasium's do (`adapters.gymnasium`). Observations are a dict of the
`observation` and the `goal`, which the suite says at a reset; in its single-task environments
(`cube-single-singletask-task2-v0`) they are the observation alone. Episodes end at the goal, with
the metric `success`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs.adapters import check_name, package
from jaxrl.envs.adapters.gymnasium import describe

PREFIX = "ogbench/"
TASKS = 5  # goals that each environment is evaluated with


def builder(name: str) -> Callable[..., Environment]:
    """Return a function that describes OGBench's environment `name`. Raises `UserError` if there is
    none."""
    package("ogbench")  # registers its environments
    registry = package("gymnasium").registry
    check_name("ogbench", name, [x for x in registry if _is_theirs(registry[x])])
    return functools.partial(build, name)


def build(name: str, task: int = 0, **settings: Any) -> Environment:
    """Describe OGBench's environment `name`, which is made with `settings`.

    task: number of the evaluation goal, 1 to 5; 0 draws one for each episode. A single-task
        environment has the goal in its name.

    Raises `UserError` for another number.
    """
    if not 0 <= task <= TASKS:
        raise UserError(f"task is {task}; OGBench has goals 1 to {TASKS}, and 0 draws one.")
    make = functools.partial(_make, name, task, settings)
    return describe(make, PREFIX + name, metrics=("success",))


def _is_theirs(spec: Any) -> bool:
    return str(spec.entry_point).startswith("ogbench.")


def _make(name: str, task: int, settings: dict[str, Any], **more: Any) -> Any:
    package("ogbench")
    theirs = package("gymnasium").make(name, disable_env_checker=True, **settings, **more)
    return _goal_class()(theirs, task, "singletask" not in name)


@functools.cache
def _goal_class() -> type:
    """Return a wrapper that shows the goal, and draws from its own seed."""
    gym = package("gymnasium")

    class Goal(gym.Wrapper):
        def __init__(self, theirs: Any, task: int, shown: bool):
            super().__init__(theirs)
            self.task, self.shown, self.goal = task, shown, None
            self.random = np.random.RandomState()
            if shown:
                box = theirs.observation_space
                self.observation_space = gym.spaces.Dict({"observation": box, "goal": box})

        def reset(self, *, seed=None, options=None):
            if seed is not None:
                self.random.seed(seed)
            outside = np.random.get_state()  # the suite draws tasks and goals from NumPy's own
            np.random.set_state(self.random.get_state())
            try:
                chosen = {"task_id": self.task} if self.task else {}
                seen, info = self.env.reset(seed=seed, options=(options or {}) | chosen)
                self.random.set_state(np.random.get_state())
            finally:
                np.random.set_state(outside)
            self.goal = info.get("goal")
            return self._show(seen), info

        def step(self, action):
            seen, *rest = self.env.step(action)
            return self._show(seen), *rest

        def _show(self, seen):
            return {"observation": seen, "goal": self.goal} if self.shown else seen

    return Goal
