"""Observations of any structure as one vector."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, is_space
from jaxrl.core.types import Array, Environment, Tree
from jaxrl.envs.wrappers.lifting import goals_behind, joined_bounds, space_leaves


@functools.cache
def flat_observations(env: Environment) -> Environment:
    """Flatten observations to one float32 vector `[D]`: the leaves one after the other, boxes of
    any kind of number as floats (pixels stay 0 to 255), `Discrete` one-hot, each component of
    `MultiDiscrete` one-hot."""
    leaves = space_leaves(env.observation_space)
    treedef = jax.tree.structure(env.observation_space, is_leaf=is_space)
    splits = np.cumsum([_size(space) for space in leaves])[:-1].tolist()

    def flat(observation: Tree) -> Array:
        parts = zip(leaves, treedef.flatten_up_to(observation), strict=True)
        return jnp.concatenate([_flat(space, value) for space, value in parts])

    def restore(vector: Array) -> Tree:
        parts = zip(leaves, jnp.split(vector, splits, axis=-1), strict=True)
        return treedef.unflatten([_restore(space, part) for space, part in parts])

    def flatten(result):
        state, timestep = result
        return state, dataclasses.replace(timestep, observation=flat(timestep.observation))

    low, high = joined_bounds([_box(space) for space in leaves])
    return dataclasses.replace(
        env,
        reset=lambda key, params: flatten(env.reset(key, params)),
        step=lambda key, state, action, params: flatten(env.step(key, state, action, params)),
        observation_space=Box(low, high, (len(low),)),
        goals=goals_behind(env.goals, restore),
        rules=None,
        state_of=None,
    )


def _box(space: Any) -> Box:
    return space if isinstance(space, Box) else Box(0.0, 1.0, (_size(space),))


def _size(space: Any) -> int:
    match space:
        case Discrete(n):
            return n
        case MultiDiscrete(sizes):
            return sum(sizes)
    return int(np.prod(space.shape, dtype=int))


def _flat(space: Any, value: Array) -> Array:
    match space:
        case Discrete(n):
            return _one_hot(value, n)
        case MultiDiscrete(sizes):
            return jnp.concatenate([_one_hot(value[i], n) for i, n in enumerate(sizes)])
    return jnp.ravel(value).astype(jnp.float32)


def _one_hot(value: Array, n: int) -> Array:
    return (jnp.arange(n) == value).astype(jnp.float32)


def _restore(space: Any, part: Array) -> Array:
    """Return the observations [...] of a space that were flattened to `part` [..., D]."""
    match space:
        case Discrete():
            return jnp.argmax(part, axis=-1).astype(space.dtype)
        case MultiDiscrete(sizes):
            ones = jnp.split(part, np.cumsum(sizes)[:-1].tolist(), axis=-1)
            return jnp.stack([jnp.argmax(one, axis=-1) for one in ones], -1).astype(space.dtype)
    return part.reshape(*part.shape[:-1], *space.shape).astype(space.dtype)
