"""Players: threads that play windows on the host, also while the learner learns from earlier ones.

Window k is played by the policy after k - s updates, where s is the staleness. So a run is the same
whatever its threads do first, and with s = 0 it is that of a loop that plays and learns in turn.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import memory as memories
from jaxrl.core.errors import UserError
from jaxrl.core.stream import Endings
from jaxrl.core.types import Batch, Key, Policy, TimeStep, Transition, Tree
from jaxrl.runtime.environments import Environments
from jaxrl.runtime.worker import Call
from jaxrl.sources.handed import Play, Window

RESET = np.uint32(2**32 - 1)  # branch of a window's key


@functools.partial(jax.jit, static_argnums=(5, 6))
def act(
    policy: Policy,
    timestep: TimeStep,
    memory: Tree,
    key: Key,
    t: int,
    greedy: bool,
    members: int | None = None,
) -> tuple[Tree, Tree, dict[str, Any]]:
    """Return the actions, the memory and the extras of a policy for copies [B] at step t.

    members: number of policies, of which each has an equal part of the copies, in order; the leaves
        of the policy's state and the key then have a leading axis [members]. None for one policy.
    """

    def one(state, key, timestep, memory):
        blank = policy.memory(timestep.first.shape[0])
        memory = memories.restart(timestep.restarts, blank, memory)
        return policy.act(state, timestep, memory, jax.random.fold_in(key, t), greedy)

    if members is None:
        return one(policy.state, key, timestep, memory)
    parts = jax.tree.map(lambda x: x.reshape(members, -1, *x.shape[1:]), (timestep, memory))
    acted = jax.vmap(one)(policy.state, key, *parts)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), acted)


def move(
    environments: Environments,
    policy: Policy,
    key: Key,
    *,
    greedy: bool = False,
    members: int | None = None,
) -> Iterator[tuple[Transition, Endings, np.ndarray]]:
    """Act again and again, from where the environments are.

    Yields the transitions [B], the endings, and which of the steps are transitions (bool [B]).
    `members` as in `act`.
    """
    if environments.memory is None:
        environments.memory = policy.memory(environments.num_envs)
    all_valid = np.ones(environments.num_envs, bool)
    for t in itertools.count():
        timestep = environments.timestep
        action, environments.memory, extras = act(
            policy, timestep, environments.memory, key, t, greedy, members
        )
        action, extras = jax.device_get((action, extras))
        following, endings, valid = environments.step(action)
        transition = Transition(timestep, action, following, (), extras)
        yield transition, endings, all_valid if valid is None else valid


def play(
    environments: Environments, policy: Policy, key: Key, window: Play, members: int | None = None
) -> Window:
    """Play one window, from where the environments are, or new episodes (`Play.fresh`).

    Returns a batch [T, B] and the episodes that ended. `Batch.env_steps` is left at 0. `members` as
    in `act`.
    """
    if window.fresh:
        first = key if members is None else key[0]
        environments.reset(jax.random.fold_in(first, RESET))
    before = environments.memory
    if before is None:
        before = policy.memory(environments.num_envs)
    running: Any = np.ones(environments.num_envs, bool)
    rows = []
    moves = move(environments, policy, key, members=members)
    for transition, endings, valid in itertools.islice(moves, window.num_steps):
        valid = running & valid
        endings = dataclasses.replace(endings, done=endings.done & valid)
        rows.append((transition, endings, valid))
        if window.fresh:  # the first episode of each copy counts
            running = running & ~endings.done
            if not running.any():
                break
    stack = functools.partial(_stack, window.num_steps)
    transitions, endings, mask = jax.tree.map(stack, *rows)
    batch = Batch(
        transitions,
        np.float32(0),  # type: ignore[arg-type]
        memory=before,
        tail=None if window.fresh else (environments.timestep, environments.memory),
        mask=mask if window.masked else None,
    )
    return Window(batch, endings)


def _stack(num_steps: int, *rows: np.ndarray) -> np.ndarray:
    """Stack rows to [num_steps, ...], with zeros where there are fewer."""
    stacked = np.stack(rows)
    if len(rows) < num_steps:
        missing = np.zeros((num_steps - len(rows), *stacked.shape[1:]), stacked.dtype)
        stacked = np.concatenate([stacked, missing])
    return stacked


def by_member(window: Window, members: int | None) -> Window:
    """Divide the streams of a window among members: leaves [T, M * B] become [M, T, B]."""
    if members is None:
        return window
    after_time = lambda x: jnp.moveaxis(x.reshape(x.shape[0], members, -1, *x.shape[2:]), 1, 0)
    first = lambda x: x.reshape(members, -1, *x.shape[1:])
    batch = window.batch
    transitions, mask, endings = jax.tree.map(
        after_time, (batch.transitions, batch.mask, window.endings)
    )
    memory, tail = jax.tree.map(first, (batch.memory, batch.tail))
    env_steps = jnp.broadcast_to(batch.env_steps, (members,))
    return Window(Batch(transitions, env_steps, memory=memory, tail=tail, mask=mask), endings)


class Players:
    """Threads that play the windows of one run, each in environments of its own.

    Args:
        environments: those of each thread, of equal number. The streams of a window are theirs, one
            thread's beside the next one's.
        play: how windows are played; `num_envs` is that of all threads together.
        staleness: updates by which the policy that plays may lie behind; windows are played ahead
            by as many.
        members: number of policies, as in `act`.

    Raises `UserError` for a staleness below 0, and if the environments are not `play.num_envs`.
    """

    def __init__(
        self,
        environments: Sequence[Environments],
        play: Play,
        *,
        staleness: int = 0,
        members: int | None = None,
    ):
        if staleness < 0:
            raise UserError(f"staleness must be at least 0 updates, got {staleness}.")
        number = sum(e.num_envs for e in environments)
        wanted = play.num_envs * (members or 1)
        if number != wanted:
            raise UserError(
                f"There are {number} environments, but num_envs is {wanted}; the numbers must be "
                "equal."
            )
        if members and len(environments) > 1:
            raise UserError("Several members have one thread of environments; set actors to 1.")
        self.environments = tuple(environments)
        self.play, self.staleness, self.members = play, staleness, members
        self._ahead: collections.deque[list[Call]] = collections.deque()

    def reset(self, key: Key) -> None:
        """Begin an episode in every copy, and forget the windows that were played ahead."""
        self._ahead.clear()
        for i, environments in enumerate(self.environments):
            environments.reset(key if i == 0 else jax.random.fold_in(key, i))

    def window(self, policy: Policy, key: Callable[[int], Key]) -> Window:
        """Return the next window, and begin to play more by `policy`, the newest one.

        key: the key of a window, from how many windows after the next one it is handed over.
        """
        for ahead in range(len(self._ahead), self.staleness + 1):
            self._ahead.append([self._begin(e, i, policy, key(ahead))
                                for i, e in enumerate(self.environments)])  # fmt: skip
        calls = zip(self.environments, self._ahead.popleft(), strict=True)
        windows = [environments.wait(call) for environments, call in calls]
        return windows[0] if len(windows) == 1 else _join(windows)

    def _begin(self, environments: Environments, i: int, policy: Policy, key: Key) -> Call:
        key = key if i == 0 else jax.random.fold_in(key, i)
        return environments.begin(
            functools.partial(play, environments, policy, key, self.play, self.members)
        )

    def close(self) -> None:
        """Close the environments."""
        for environments in self.environments:
            environments.close()


def _join(windows: Sequence[Window]) -> Window:
    """Return one window of the streams of several."""
    beside = lambda axis: lambda *x: np.concatenate(x, axis)
    batches = [window.batch for window in windows]
    by_time = [(x.batch.transitions, x.batch.mask, x.endings) for x in windows]
    transitions, mask, endings = jax.tree.map(beside(1), *by_time)
    memory, tail = jax.tree.map(beside(0), *[(x.memory, x.tail) for x in batches])
    batch = dataclasses.replace(
        batches[0], transitions=transitions, mask=mask, memory=memory, tail=tail
    )
    return Window(batch, endings)
