"""Builders of the time steps that `reset` and `step` return, with the usual values filled in."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl.core.types import Array, TimeStep, Tree


def first(observation: Tree, reward: Array | float = 0.0, **channels: Any) -> TimeStep:
    """Build the time step of a reset: no reward yet (zeros [N] with N agents), nothing ended.
    `channels` are the optional fields of `TimeStep`; `following` must be given the same ones."""
    no = jnp.zeros((), bool)
    return TimeStep(observation, jnp.asarray(reward, jnp.float32), no, no, ~no, **channels)


def following(
    observation: Tree, reward: Array | float, terminated: Array | bool = False, **channels: Any
) -> TimeStep:
    """Build the time step of a step from its reward (a scalar, or [N] with N agents) and
    `terminated` (bool). Truncation is left to `time_limit`."""
    no = jnp.zeros((), bool)
    return TimeStep(
        observation, jnp.asarray(reward, jnp.float32), terminated | no, no, no, **channels
    )


def text_steps(tokens: Array) -> TimeStep:
    """Build the time steps of whole texts from their tokens, int32 [T, B]: each begins an episode,
    and nothing is paid."""
    none, no = jnp.zeros(tokens.shape), jnp.zeros(tokens.shape, bool)
    return TimeStep(tokens, none, no, no, no.at[0].set(True))
