"""Copies of an environment on the host, stepped together, whatever package steps them.

Packages differ in what they return when an episode ends. Gymnasium's vectors may not reset at all,
reset in the same step, or in the next one, whose action is ignored; EnvPool resets in the next
step unless it is told to before. `Copies` makes one thing of them: a step returns the true last
observation and, for the copies whose episode ended, the first one of the next episode.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.envs.adapters import package

MODES = ("sync", "processes")
FPS = 30.0  # of environments that do not say


class Seen(NamedTuple):
    """Result of a step of B copies, in the package's own terms."""

    following: Any
    """Observations after the action, also where the episode ended: [B, ...]."""
    reward: np.ndarray
    """Rewards: float32 [B]."""
    terminated: np.ndarray
    """Termination: bool [B]."""
    truncated: np.ndarray
    """Truncation alone, False where `terminated`: bool [B]."""
    live: Any
    """Observations that the next action answers, of a new episode where one ended: [B, ...]. None
    if `renew` returns them."""
    metrics: dict[str, np.ndarray]
    """`Host.metrics` after the action: float32 [B] each."""
    valid: np.ndarray | None = None
    """False where the step was a reset and no transition: bool [B]; None if all are steps."""


class Copies(Protocol):
    """B copies of an environment."""

    observation_space: Any
    """Gymnasium's space of one observation."""
    action_space: Any
    """Gymnasium's space of one action."""
    fps: float
    """Pictures per second of the environment's own time, or those that it asks for."""

    def reset(self, seeds: list[int]) -> Any:
        """Begin an episode in every copy, and return the observations [B, ...]."""
        ...

    def step(self, action: Any) -> Seen:
        """Act [B, ...]."""
        ...

    def renew(self, done: np.ndarray) -> Any:
        """Begin an episode in the copies that are `done`, and return the observations of all."""
        ...

    def render(self) -> list[np.ndarray]:
        """Return a picture of each copy: uint8 [H, W, 3]."""
        ...

    def close(self) -> None:
        """Release what the copies hold."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Host:
    """Maker of copies of an environment.

    make(num_envs, mode, render) -> Copies; `mode` is one of `MODES`, `render` whether pictures are
    asked for.
    masked: whether some steps are none (`Seen.valid`).
    metrics: names in what a step says besides (its `info`) that episodes are judged by, such as
        "success"; 0 where a step says nothing.
    one: a function that makes a single `gymnasium.Env`, which wrappers take; None where a package
        makes copies only.
    step: the `step` of the environment, which refuses to run; another one is of a compiled wrapper.
    """

    make: Callable[[int, str, bool], Copies]
    masked: bool = False
    metrics: tuple[str, ...] = ()
    one: Callable[..., Any] | None = None
    step: Callable[..., Any] | None = None


class Vector:
    """Copies in one of Gymnasium's vectors, in any of its autoreset modes."""

    def __init__(self, vector: Any, metrics: tuple[str, ...] = ()):
        self.vector, self.metrics = vector, metrics
        self.observation_space = vector.single_observation_space
        self.action_space = vector.single_action_space
        self.fps = _fps(vector)
        self._mode = autoreset_mode(vector)
        self._resets = np.zeros(vector.num_envs, bool)  # copies whose next step is a reset

    def reset(self, seeds: list[int]) -> Any:
        self._resets[:] = False
        return self.vector.reset(seed=seeds)[0]

    def step(self, action: Any) -> Seen:
        seen, reward, terminated, truncated, info = self.vector.step(action)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        reward, done = np.asarray(reward, np.float32), terminated | truncated
        following = live = seen
        valid = None
        if self._mode == "NEXT_STEP":
            valid, self._resets = ~self._resets, done
            reward = np.where(valid, reward, np.float32(0))
        elif done.any():
            if self._mode == "SAME_STEP":
                following = _last(self.vector.single_observation_space, seen, info, done)
            else:
                live = None
        nothing = np.zeros(len(done), np.float32)
        metrics = {name: np.asarray(info.get(name, nothing), np.float32) for name in self.metrics}
        return Seen(following, reward, terminated, truncated & ~terminated, live, metrics, valid)

    def renew(self, done: np.ndarray) -> Any:
        return self.vector.reset(options={"reset_mask": done})[0]

    def render(self) -> list[np.ndarray]:
        return list(self.vector.render())

    def close(self) -> None:
        self.vector.close()


def _fps(theirs: Any) -> float:
    return float(theirs.metadata.get("render_fps") or FPS)


def autoreset_mode(vector: Any) -> str:
    """Return the autoreset mode of a vector: DISABLED, NEXT_STEP or SAME_STEP. Raises `UserError`
    for a vector that does not say."""
    mode = getattr(vector.metadata.get("autoreset_mode"), "name", None)
    if mode not in ("DISABLED", "NEXT_STEP", "SAME_STEP"):
        raise UserError(
            f"The vector environment {vector} does not say in metadata['autoreset_mode'] when it "
            "resets; it must be one of gymnasium.vector.AutoresetMode."
        )
    return mode


def _last(space: Any, seen: Any, info: dict[str, Any], done: np.ndarray) -> Any:
    """Return the observations `seen` with the last ones where an episode is `done`."""
    last = info["final_obs"]

    def put(space, seen, last):
        match type(space).__name__:
            case "Dict":
                return {
                    key: put(part, seen[key], [x and x[key] for x in last])
                    for key, part in space.spaces.items()
                }
            case "Tuple":
                return tuple(
                    put(part, seen[i], [x and x[i] for x in last])
                    for i, part in enumerate(space.spaces)
                )
        whole = np.array(seen)
        for i in np.flatnonzero(done):
            whole[i] = last[i]
        return whole

    return put(space, seen, [last[i] if done[i] else None for i in range(len(done))])


def vectorize(
    make: Callable[..., Any], metrics: tuple[str, ...], num_envs: int, mode: str, render: bool
) -> Copies:
    """Make copies of a `gymnasium.Env`, which make(render_mode=...) returns.

    metrics: as in `Host`.
    mode: "sync" to step them one after another in this process, "processes" for a process each.
        Processes are spawned (forking JAX's threads may hang), so a script needs its `__main__`
        guard.
    """
    one = functools.partial(make, render_mode="rgb_array") if render else make
    vector = package("gymnasium.vector")
    kind = vector.SyncVectorEnv
    if mode == "processes":
        kind = functools.partial(vector.AsyncVectorEnv, context="spawn")
    # Disabled, so that a step returns its true successor; `renew` begins the next episode.
    copies = kind([one] * num_envs, autoreset_mode=vector.AutoresetMode.DISABLED)
    return Vector(copies, metrics)
