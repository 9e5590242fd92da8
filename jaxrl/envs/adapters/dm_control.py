"""Environments of dm_control (Tassa et al., 2018, arXiv:1801.00690), such as
`dm_control/cartpole-swingup`.

They run on the host, as Gymnasium's do (`adapters.gymnasium`). Observations are the suite's dict of
vectors. Episodes are truncated after 1,000 environment steps at most; where the suite's discount is
0 they terminate.
"""

from __future__ import annotations

import ctypes.util
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl.core import errors
from jaxrl.core.types import Environment
from jaxrl.envs.adapters import package
from jaxrl.envs.adapters.gymnasium import describe

PREFIX = "dm_control/"


def builder(name: str) -> Callable[..., Environment]:
    """Return a function that describes the suite's task `domain-task`. Raises `UserError` if there
    is none."""
    known = [f"{PREFIX}{domain}-{task}" for domain, task in _suite().ALL_TASKS]
    if PREFIX + name not in known:
        raise errors.unknown("environment", PREFIX + name, sorted(known))
    return functools.partial(build, name)


def build(name: str, **settings: Any) -> Environment:
    """Describe the task `name`, which is made with the task's own `settings`, such as
    time_limit=10 (in seconds)."""
    return describe(functools.partial(make, name, **settings), PREFIX + name)


def make(name: str, render_mode: str | None = None, **settings: Any) -> Any:
    """Make the task `name` as a `gymnasium.Env`."""
    domain, task = name.split("-", 1)
    theirs = _suite().load(domain, task, task_kwargs=settings or None)
    return _environment_class()(theirs, f"{domain}-{task}")


def _suite() -> Any:
    if "DISPLAY" not in os.environ:  # else the package does not import where there is no screen
        libraries = {"egl": "EGL", "osmesa": "OSMesa"}
        found = [backend for backend, name in libraries.items() if ctypes.util.find_library(name)]
        os.environ.setdefault("MUJOCO_GL", found[0] if found else "disable")
    return package("dm_control.suite")


@functools.cache
def _environment_class() -> type:
    """Return the class of dm_control's tasks as environments of Gymnasium."""
    gym = package("gymnasium")

    class Task(gym.Env):
        def __init__(self, theirs: Any, name: str):
            self.theirs = theirs
            self.render_mode = "rgb_array"
            self.metadata = {"render_fps": 1.0 / theirs.control_timestep()}
            self.observation_space = gym.spaces.Dict(
                {key: _box(gym, spec) for key, spec in theirs.observation_spec().items()}
            )
            self.action_space = _box(gym, theirs.action_spec())
            steps = theirs._step_limit  # infinite if the task has none
            limit = None if math.isinf(steps) else math.ceil(steps)
            self.spec = gym.envs.registration.EnvSpec(
                f"{name}-v0", max_episode_steps=limit, disable_env_checker=True
            )

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            if seed is not None:
                self.theirs.task._random = np.random.RandomState(seed)
            return self._observation(self.theirs.reset()), {}

        def step(self, action):
            after = self.theirs.step(action)
            terminated = after.last() and after.discount == 0
            truncated = after.last() and not terminated
            return self._observation(after), float(after.reward or 0.0), terminated, truncated, {}

        def render(self):
            return self.theirs.physics.render(height=240, width=320, camera_id=0)

        def close(self):
            self.theirs.close()

        def _observation(self, after):
            spaces = self.observation_space.spaces
            return {
                key: np.asarray(after.observation[key], box.dtype).reshape(box.shape)
                for key, box in spaces.items()
            }

    return Task


def _box(gym: Any, spec: Any) -> Any:
    """Convert an array that dm_control specifies to a space of Gymnasium."""
    low = getattr(spec, "minimum", -np.inf)
    high = getattr(spec, "maximum", np.inf)
    bound = lambda x: np.broadcast_to(np.asarray(x, spec.dtype), spec.shape)
    if not np.issubdtype(spec.dtype, np.floating):
        return gym.spaces.Box(bound(low), bound(high), spec.shape, spec.dtype)
    return gym.spaces.Box(bound(low), bound(high), spec.shape, np.float64)
