"""Environments of EnvPool (Weng et al., 2022, arXiv:2206.10558), such as `envpool/CartPole-v1`.

They run on the host in a pool of C++ threads, many times faster than Gymnasium's own where several
copies are stepped together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.core.types import Environment
from jaxrl.envs.adapters import check_name, construct, package
from jaxrl.envs.adapters.copies import FPS, Host, Seen
from jaxrl.envs.adapters.gymnasium import description

PREFIX = "envpool/"


def builder(name: str) -> Callable[..., Environment]:
    """Return a function that describes EnvPool's environment `name`. Raises `UserError` if there is
    none."""
    check_name("envpool", name, package("envpool").list_all_envs())
    return functools.partial(build, name)


def build(name: str, **settings: Any) -> Environment:
    """Describe EnvPool's environment `name`, made with `settings` such as frame_skip=4."""
    make = functools.partial(Pool, name, settings)
    one = construct(PREFIX + name, lambda: make(1))
    limit = int(one.pool.spec.config.max_episode_steps)
    return description(
        PREFIX + name,
        one.observation_space,
        one.action_space,
        max_steps=limit if 0 < limit < 10**6 else None,
        host=Host(lambda num_envs, mode, render: make(num_envs)),
    )


class Pool:
    """Copies in a pool of EnvPool, which begins a new episode in the step after the last one unless
    it is told to before."""

    fps = FPS

    def __init__(self, name: str, settings: dict[str, Any], num_envs: int):
        self._make = functools.partial(
            package("envpool").make_gymnasium, name, num_envs=num_envs, **settings
        )
        self.pool = self._make()
        self.observation_space = self.pool.observation_space
        self.action_space = self.pool.action_space

    def reset(self, seeds: list[int]) -> Any:
        self.pool.close()
        self.pool = self._make(seed=seeds[0])  # it takes its seed when it is made
        return self.pool.reset()[0]

    def step(self, action: Any) -> Seen:
        seen, reward, terminated, truncated, _ = self.pool.step(action)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        truncated = truncated & ~terminated
        live = None if (terminated | truncated).any() else seen
        self._seen = seen
        return Seen(seen, np.asarray(reward, np.float32), terminated, truncated, live, {})

    def renew(self, done: np.ndarray) -> Any:
        which = np.flatnonzero(done).astype(np.int32)
        begun = self.pool.reset(which)[0]
        return jax.tree.map(functools.partial(_put, which), self._seen, begun)

    def render(self) -> list[np.ndarray]:
        raise NotImplementedError("EnvPool draws no pictures here")

    def close(self) -> None:
        self.pool.close()


def _put(which: np.ndarray, all: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Return `all` [B, ...] with the rows `which` replaced by `some`."""
    replaced = np.array(all)
    replaced[which] = some
    return replaced
