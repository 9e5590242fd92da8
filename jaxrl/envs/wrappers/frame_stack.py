"""The last few observations as one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, bounds, is_space
from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import goals_behind, lift_fields


@struct
class State:
    """State of the wrapped environment and the stacked observations."""

    inner: Tree
    frames: Tree  # stacked like the observation


def frame_stack(env: Environment, frames: int = 4) -> Environment:
    """Stack the last `frames` observations, the latest last.

    They are concatenated along the last axis of every leaf: vectors `[D]` to `[frames * D]`, images
    `[H, W, C]` to `[H, W, frames * C]`, scalars to `[frames]`. After a reset the first observation
    is repeated. Raises `UserError` if `frames` is not a positive integer.
    """
    return _frame_stack(env, arguments.positive_integer(env, "number of stacked frames", frames))


@functools.cache
def _frame_stack(env: Environment, frames: int) -> Environment:
    def every(observation: Tree) -> Tree:
        return jax.tree.map(lambda x: jnp.concatenate([_row(x)] * frames, axis=-1), observation)

    def push(stack: Tree, new: Tree) -> Tree:
        def leaf(old, new):
            new = _row(new)
            return jnp.concatenate([old[..., new.shape[-1] :], new], axis=-1)

        return jax.tree.map(leaf, stack, new)

    def reset(key, params):
        inner, timestep = env.reset(key, params)
        stack = every(timestep.observation)
        return State(inner, stack), dataclasses.replace(timestep, observation=stack)

    def step(key, state, action, params):
        inner, timestep = env.step(key, state.inner, action, params)
        stack = push(state.frames, timestep.observation)
        return State(inner, stack), dataclasses.replace(timestep, observation=stack)

    def latest(stack: Tree) -> Tree:
        def leaf(space, x):
            last = x[..., x.shape[-1] // frames * (frames - 1) :]
            return last.reshape(*x.shape[: x.ndim - (len(space.shape) or 1)], *space.shape)

        return jax.tree.map(leaf, env.observation_space, stack, is_leaf=is_space)

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        observation_space=jax.tree.map(
            lambda space: _space(space, frames), env.observation_space, is_leaf=is_space
        ),
        **(lift_fields(env, state=True) | {"goals": goals_behind(env.goals, latest)}),
    )


def _row(x: Array) -> Array:
    """Turn a scalar into a vector, so that there is a last axis."""
    return jnp.atleast_1d(x)


def _space(space: Any, frames: int) -> Any:
    match space:
        case Discrete(n):
            return MultiDiscrete((n,) * frames)
        case MultiDiscrete(sizes):
            return MultiDiscrete(sizes * frames)
    shape = space.shape or (1,)
    low, high = space.low, space.high
    if np.ndim(low) or np.ndim(high):  # scalar bounds stay: images would make long tuples
        low, high = (
            arguments.tuples(np.concatenate([side.reshape(shape)] * frames, axis=-1).tolist())
            for side in bounds(space)
        )
    return Box(low, high, (*shape[:-1], shape[-1] * frames), space.dtype)
