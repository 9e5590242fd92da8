"""Environments of suites whose published figures repeat each action."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from jaxrl.core.types import Environment
from jaxrl.envs.adapters import dm_control as adapter
from jaxrl.envs.adapters import package
from jaxrl.envs.adapters.gymnasium import describe
from jaxrl.envs.options import at_least


def dm_control(task: str = "cartpole-swingup", repeat: int = 2) -> Environment:
    """Describe the task `domain-task` of dm_control, with each action played `repeat` times.

    A step's reward is the sum of its repetitions', and an episode ends with any of them. The time
    limit is divided by `repeat`, so the return of an episode is on dm_control's own scale.

    Raises `UserError` as `dm_control/TASK` does.
    """
    adapter.builder(task)  # says which tasks there are
    at_least(f"dm_control/{task}", "repeat", repeat, 1)
    return describe(functools.partial(_make, task, repeat), f"{adapter.PREFIX}{task}")


def _make(task: str, repeat: int, **settings: Any) -> Any:
    return _repeat_class()(adapter.make(task, **settings), repeat)


@functools.cache
def _repeat_class() -> type:
    gym = package("gymnasium")

    class Repeat(gym.Wrapper):
        """Plays each action several times."""

        def __init__(self, env: Any, repeat: int):
            super().__init__(env)
            self.repeat = repeat
            limit = env.spec.max_episode_steps
            shorter = None if limit is None else math.ceil(limit / repeat)
            self._own_spec = dataclasses.replace(env.spec, max_episode_steps=shorter)

        @property
        def spec(self) -> Any:
            return self._own_spec

        def step(self, action: Any) -> Any:
            total = 0.0
            for _ in range(self.repeat):
                observation, reward, terminated, truncated, info = self.env.step(action)
                total += float(reward)
                if terminated or truncated:
                    break
            return observation, total, terminated, truncated, info

    return Repeat
