"""Copies of an environment on the host, and their present state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl import envs
from jaxrl.core import stream
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Environment, Key, TimeStep, Tree
from jaxrl.envs import adapters
from jaxrl.envs.adapters import gymnasium as conversions
from jaxrl.envs.adapters.copies import MODES, Copies
from jaxrl.runtime.driver import Halted
from jaxrl.runtime.worker import Call, Worker

POLL_SECONDS = 0.1  # between two checks whether to keep waiting for an environment


class EnvironmentFailed(Halted):
    """An environment that raised, or returned unusable values; the message says what."""


class Abandoned(Halted):
    """An environment that was no longer waited for, because `Environments.stopping` said so."""


class Environments:
    """`num_envs` (B) copies of an environment on the host, and their present state.

    All calls of the environment, including its construction, are made in one thread of their own,
    so that a call that never returns can be abandoned.

    Args:
        env: an environment on the host (`envs.make("gymnasium/CartPole-v1")`), a name that
            Gymnasium knows, or a function that returns a `gymnasium.Env`.
        mode: "sync", or "processes" to run each copy in a process of its own, for environments
            slower than messages between processes. They are spawned (forking JAX's threads may
            hang), so a script needs its `__main__` guard.
        stopping: returns whether to stop. It is asked before each call of the environment and
            repeatedly during one; then `Abandoned` is raised, and the environments are unusable.
        render: whether `render` will be called.

    Raises:
        UserError: for an environment that cannot be made.
        EnvironmentFailed: also later, if an environment raises, or returns values that are not
            finite or do not have the shape of its spaces.
    """

    def __init__(
        self,
        env: Environment | str | Callable[[], Any],
        num_envs: int,
        mode: str = "sync",
        *,
        stopping: Callable[[], bool] = lambda: False,
        render: bool = False,
    ):
        if num_envs < 1:
            raise UserError(f"num_envs must be at least 1, got {num_envs}.")
        if mode not in MODES:
            raise unknown("mode of environments on the host", mode, MODES)
        self.num_envs = num_envs
        self.stopping = stopping
        self._worker = Worker()
        self.name = getattr(env, "name", str(env))
        self.env: Environment = self._call("its constructor", lambda: _describe(env))
        self.name = self.env.name
        make = functools.partial(self.env.host.make, num_envs, mode, render)
        self.copies: Copies = self._call(
            "its constructor", lambda: adapters.construct(self.name, make)
        )
        self.timestep: Any = None  # a TimeStep [B] of NumPy arrays; None before the first reset
        self.memory: Tree = None  # [B], after the last action
        self.episode_return: Any = None  # float32 [B], so far
        self.episode_length: Any = None  # int32 [B], so far

    def reset(self, key: Key) -> None:
        """Begin an episode in every copy, with seeds drawn from `key`."""
        seeds = jax.random.randint(key, (self.num_envs,), 0, np.iinfo(np.int32).max)
        listed = np.asarray(seeds).tolist()

        def reset():
            seen = self.copies.reset(listed)
            conversions.check_finite(seen)
            return seen

        seen = self._call("reset", reset)
        self.timestep = self._timestep(seen, first=np.ones(self.num_envs, bool))
        self.memory = None
        self.episode_return = np.zeros(self.num_envs, np.float32)
        self.episode_length = np.zeros(self.num_envs, np.int32)

    def step(self, action: Tree) -> tuple[TimeStep, stream.Endings, np.ndarray | None]:
        """Act [B] and return the true successors, the episodes that ended, and which of the steps
        are transitions (bool [B]; None if all are).

        Copies whose episode ended continue with a fresh one in `timestep`.
        """
        taken = conversions.action(self.copies.action_space, action)

        def step():
            seen = self.copies.step(taken)
            conversions.check_finite(seen.following, seen.reward)
            return seen

        seen = self._call("step", step)
        live, done = seen.live, seen.terminated | seen.truncated
        if live is None:
            live = self._call("reset", lambda: self.copies.renew(done))
        if live is not seen.following:
            self._call("reset", lambda: conversions.check_finite(live))
        following = self._timestep(
            seen.following, seen.reward, seen.terminated, seen.truncated, metrics=seen.metrics
        )
        self.episode_return = self.episode_return + seen.reward
        self.episode_length = self.episode_length + np.int32(1)
        ended: Any = done
        endings = stream.Endings(ended, self.episode_return, self.episode_length, seen.metrics)
        begun = done if seen.valid is None else ~seen.valid
        over = done | begun
        if over.any():
            self.episode_return = np.where(over, np.float32(0), self.episode_return)
            self.episode_length = np.where(over, np.int32(0), self.episode_length)
        reward = np.where(begun, np.float32(0), seen.reward)
        self.timestep = self._timestep(live, reward, first=begun)
        return following, endings, seen.valid

    def render(self) -> list[np.ndarray]:
        """Return a picture of each copy: uint8 [H, W, 3]."""
        return self._call("render", self.copies.render)

    def close(self) -> None:
        """Close the environments."""
        self._call("close", self.copies.close)

    def begin(self, function: Callable[[], Any]) -> Call:
        """Request `function()`, which may step the environments, in their thread."""
        return self._worker.begin(function)

    def wait(self, call: Call) -> Any:
        """Return the result of a call that was begun, or raise its error."""
        while not call.done.wait(POLL_SECONDS):
            self._check_stopping()
        if call.error is not None:
            raise call.error
        return call.value

    def _check_stopping(self) -> None:
        if self.stopping():
            raise Abandoned(f"Stopped waiting for the environment '{self.name}'.")

    def _call(self, where: str, function: Callable[[], Any]) -> Any:
        """Return the result of `function`, which runs code of the environment."""
        self._check_stopping()

        def run():
            try:
                return function()
            except (UserError, Halted):
                raise
            except BaseException as error:  # SystemExit too
                complaint = conversions.complaint(error, where)
                raise EnvironmentFailed(f"The environment '{self.name}' {complaint}.") from error

        return run() if self._worker.is_here else self.wait(self.begin(run))

    def _timestep(
        self, seen: Any, reward: Any = None, terminated: Any = None, truncated: Any = None,
        first: Any = None, metrics: Any = None,
    ) -> TimeStep:  # fmt: skip
        no: Any = np.zeros(self.num_envs, bool)
        nothing = no.astype(np.float32)
        metrics = metrics or dict.fromkeys(self.env.host.metrics, nothing)
        return TimeStep(
            conversions.observation(self.copies.observation_space, seen),
            nothing if reward is None else reward,
            no if terminated is None else terminated,
            no if truncated is None else truncated,
            no if first is None else first,
            metrics=metrics or None,
        )


def _describe(env: Environment | str | Callable[[], Any]) -> Environment:
    """Return a description of what `Environments` was given."""
    if isinstance(env, Environment):
        if env.host is None:
            raise UserError(f"'{env.name}' does not run on the host; it is compiled.")
        return env
    if isinstance(env, str):
        return envs.make(conversions.PREFIX + env)
    name = getattr(env, "__name__", type(env).__name__)
    return conversions.describe(lambda **settings: env(**settings), conversions.PREFIX + name)
