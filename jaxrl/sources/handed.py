"""Handed windows: experience that environments outside of the program played.

A source of an environment on the host (`Environment.host`) is a source as any other, so replay
buffers, priorities and sequences lie around it. It cannot play by itself: before each `collect`,
whoever runs the program plays a window and puts it into the source's state (`hand`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import stream
from jaxrl.core.errors import UserError
from jaxrl.core.types import REPLICATED, Array, Batch, Environment, Source, Tree, struct


@struct
class Window:
    """A batch [T, B] that was played on the host, and the episodes that ended in it."""

    batch: Batch
    endings: stream.Endings


@struct
class Handed:
    """State of a source of handed windows."""

    window: Any
    """The `Window` to collect next; None while there is none."""
    windows: Array
    """Windows so far: int32."""


@dataclasses.dataclass(frozen=True)
class Play:
    """Sizes and kind of the windows that are played for a source.

    env: the environment, which runs on the host. num_envs, num_steps: sizes of a window. fresh:
    whether every window begins new episodes and ends with them. masked: whether windows have a
    mask.
    """

    env: Environment
    num_envs: int
    num_steps: int
    fresh: bool
    masked: bool


def host_source(compiled: Source, env: Environment, fresh: bool = False) -> Source:
    """Return a source of windows that look like those of `compiled` and are handed to it.

    compiled: the source of `env`, whose `reset` and `step` tell shapes only. fresh: as in `Play`.
    """
    masked = fresh or env.host.masked

    def init(key, hyper, policy):
        return Handed(None, jnp.int32(0))

    def collect(state, policy, key):
        window = state.window
        if window is None:  # traced for its shapes
            window = _nothing(compiled, masked, policy, key)
        windows = state.windows + 1
        env_steps = windows.astype(jnp.float32) * compiled.env_steps
        batch = dataclasses.replace(window.batch, env_steps=env_steps)
        return Handed(None, windows), batch, stream.statistics(window.endings)

    return Source(
        compiled.name,
        init,
        collect,
        sample=lambda state, fresh, key: fresh,
        env_steps=compiled.env_steps,
        num_envs=compiled.num_envs,
        hyper=compiled.hyper,
        partition=REPLICATED,
        host_play=Play(
            env, compiled.num_envs, compiled.env_steps // compiled.num_envs, fresh, masked
        ),
    )


def _nothing(compiled: Source, masked: bool, policy: Any, key: Any) -> Window:
    """Return a window of the right shapes; where it is computed, `compiled` refuses to play."""
    state = compiled.init(key, compiled.hyper, policy)
    _, batch, _ = compiled.collect(state, policy, key)
    shape = batch.transitions.reward.shape
    if masked and batch.mask is None:
        batch = dataclasses.replace(batch, mask=jnp.ones(shape, bool))
    no = jnp.zeros(shape, bool)
    metrics = batch.transitions.next_timestep.metrics or {}
    endings = stream.Endings(no, batch.transitions.reward, no.astype(jnp.int32), metrics)
    return Window(batch, endings)


def hand(state: Tree, window: Window) -> Tree:
    """Return the state of a source, or a state that holds it, with its next window."""
    is_place = lambda x: isinstance(x, Handed)
    put = lambda x: dataclasses.replace(x, window=window) if is_place(x) else x
    return jax.tree.map(put, state, is_leaf=is_place)


def check_played(source: Source | None, name: str) -> Play:
    """Return how windows are played for a source.

    Raises `UserError` for an algorithm `name` that plays by other means.
    """
    played = source.host_play if source else None
    if played is None:
        raise UserError(
            f"'{name}' plays inside of its program, so it cannot learn in an environment on the "
            "host; algorithms that learn from rollouts, a replay buffer or whole episodes can."
        )
    return played
