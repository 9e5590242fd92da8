"""A Gymnasium environment that fails at a chosen step.

`FAULT=hang 40 FILE` in the environment of a process: at the 40th step of all copies together FILE
is written, and the step never returns.
"""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NAME = "gymnasium/tests.runtime.faulty:Faulty-v0"
LENGTH = 5  # steps of an episode


class Faulty(gymnasium.Env):
    """Environment with episodes of five steps of reward 1.

    `fault` is called with each method and the number of its calls, and may return a replacement of
    the method's result.
    """

    observation_space = spaces.Dict({"place": spaces.Box(-1.0, 1.0, (2,), np.float32)})
    action_space = spaces.Discrete(2)
    fault: Callable[[str, int], Any] = staticmethod(lambda method, count: None)
    counts = {"reset": 0, "step": 0, "close": 0}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._call("reset", (self._observation(), {}))

    def step(self, action):
        self.t += 1
        return self._call("step", (self._observation(), 1.0, False, self.t == LENGTH, {}))

    def close(self):
        self._call("close", None)

    def _observation(self):
        return {"place": np.full(2, self.t / LENGTH, np.float32)}

    def _call(self, method, result):
        self.counts[method] += 1
        return Faulty.fault(method, self.counts[method]) or result


class Blind(Faulty):
    """An environment that draws no pictures."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        raise RuntimeError("no screen")


def _hang(at: int, file: str) -> Callable[[str, int], None]:
    def fault(method, count):
        if method == "step" and count == at:
            pathlib.Path(file).touch()
            threading.Event().wait()

    return fault


if "FAULT" in os.environ:
    _, at, file = os.environ["FAULT"].split()
    Faulty.fault = staticmethod(_hang(int(at), file))

gymnasium.register("Faulty-v0", Faulty, max_episode_steps=100)
gymnasium.register("Endless-v0", Faulty)
gymnasium.register("Blind-v0", Blind, max_episode_steps=100)
