"""Wrappers of environments on the host, by the names of a configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Environment
from jaxrl.envs.adapters import package
from jaxrl.envs.adapters.gymnasium import PREFIX, describe
from jaxrl.envs.wrappers import registry
from jaxrl.envs.wrappers.registry import Named, split_name


def wrap(env: Environment, named: Sequence[Named]) -> Environment:
    """Wrap an environment, compiled or on the host, in wrappers by name, the first innermost.

    named: as in `wrappers.registry.wrap`; on the host `frame_stack`, `action_repeat`, or those of
        Gymnasium by names such as {"gymnasium/ResizeObservation": {"shape": [84, 84]}}.

    Raises `UserError` for other names, and for an environment that cannot be wrapped.
    """
    if env.host is None:
        return registry.wrap(env, named)
    for entry in named:
        name, given = split_name(entry)
        if env.host.one is None:
            raise UserError(f"'{env.name}' is made in copies only, so it cannot be wrapped.")
        make = functools.partial(_make, _wrapper(name), dict(given), env.host.one)
        env = describe(make, env.name, env.host.metrics)
    return env


def _make(wrapper: Callable[..., Any], given: dict[str, Any], make: Any, **settings: Any) -> Any:
    return wrapper(make(**settings), **given)


def _wrapper(name: str) -> Callable[..., Any]:
    if name in OWN:
        return OWN[name]
    known = {PREFIX + x: x for x in package("gymnasium.wrappers").__all__}
    if name not in known:
        raise unknown("wrapper on the host", name, [*OWN, *sorted(known)])
    return getattr(package("gymnasium.wrappers"), known[name])


def frame_stack(theirs: Any, frames: int = 4) -> Any:
    """Stack the last observations along their last axis, as `wrappers.frame_stack` does."""
    gym = package("gymnasium")
    if type(theirs.observation_space).__name__ != "Box":
        raise UserError(f"frame_stack needs a single array, not {theirs.observation_space}.")
    stacked = gym.wrappers.FrameStackObservation(theirs, frames, padding_type="reset")
    join = lambda x: np.concatenate(x, axis=-1) if x.ndim > 1 else x
    box = stacked.observation_space
    low, high = join(box.low), join(box.high)
    joined = gym.spaces.Box(low, high, low.shape, box.dtype)
    return gym.wrappers.TransformObservation(stacked, join, joined)


def action_repeat(theirs: Any, repeats: int) -> Any:
    """Play every action for `repeats` steps and sum their rewards, as `wrappers.action_repeat`
    does; the time limit is divided by `repeats`."""
    if not isinstance(repeats, int) or repeats < 1:
        raise UserError(f"The action repeat must be a positive integer, got {repeats}.")
    return _repeat_class()(theirs, repeats)


@functools.cache
def _repeat_class() -> type:
    gym = package("gymnasium")

    class Repeat(gym.Wrapper):
        def __init__(self, env: Any, repeats: int):
            super().__init__(env)
            self.repeats, self._own_spec = repeats, env.spec
            if env.spec is not None and env.spec.max_episode_steps is not None:
                limit = -(-env.spec.max_episode_steps // repeats)
                self._own_spec = dataclasses.replace(env.spec, max_episode_steps=limit)

        @property
        def spec(self) -> Any:
            return self._own_spec

        def step(self, action: Any) -> Any:
            total = 0.0
            for _ in range(self.repeats):
                seen, reward, terminated, truncated, info = self.env.step(action)
                total += float(reward)
                if terminated or truncated:
                    break
            return seen, total, terminated, truncated, info

    return Repeat


OWN = {"frame_stack": frame_stack, "action_repeat": action_repeat}
