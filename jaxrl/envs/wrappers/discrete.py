"""Finite sets of actions in place of vectors."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, bounds
from jaxrl.core.types import Array, Environment

MOST_ACTIONS = 2**20  # in one Discrete space, since a policy has an output for each


def discretized_actions(env: Environment, bins: Any = 11, joint: bool = True) -> Environment:
    """Discretize continuous actions to a grid.

    bins: number of values of each component, evenly spaced and including both bounds; a number, or
        one for each component.
    joint: one `Discrete` action for every combination (the last component varies fastest), or a
        `MultiDiscrete` with one for each component.

    `expert` plays the nearest action of the grid. Raises `UserError` for actions that are not one
    bounded Box of floats, fewer than 2 bins, and more than 2**20 joint actions.
    """
    space = env.action_space
    if not (isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.floating)) or not all(
        np.all(np.isfinite(side)) for side in bounds(space)
    ):
        raise UserError(
            f"The action of '{env.name}' is {space}; only one Box of floats with finite bounds can "
            "be discretized."
        )
    size = math.prod(space.shape)
    try:
        sizes = np.broadcast_to(np.asarray(bins), (size,))
        fits = sizes.dtype.kind in "iu" and bool(np.all(sizes >= 2))
    except ValueError:
        fits = False
    if not fits:
        raise UserError(
            f"The bins of the actions of '{env.name}' are {bins!r}; they must be an integer of at "
            f"least 2, or {size} of them."
        )
    grid = _grid(env, tuple(sizes.tolist()))
    return flat_actions(grid) if joint else grid


@functools.cache
def _grid(env: Environment, sizes: tuple[int, ...]) -> Environment:
    space = env.action_space
    low, high = (side.ravel() for side in bounds(space))
    last = np.asarray(sizes, np.float32) - 1

    def value(action: Array) -> Array:
        share = action / last
        # Not low + fraction * width, which may miss the upper bound by rounding.
        return jnp.asarray(low * (1 - share) + high * share, space.dtype).reshape(space.shape)

    def nearest(action: Array) -> Array:
        width = np.where(high > low, high - low, 1)
        place = jnp.round((jnp.ravel(action) - low) / width * last)
        return jnp.clip(place, 0, last).astype(jnp.int32)

    return _replace_actions(env, MultiDiscrete(sizes), value, nearest)


@functools.cache
def flat_actions(env: Environment) -> Environment:
    """Flatten `MultiDiscrete` actions to one `Discrete` action for every combination, the last
    component varying fastest. A combination is legal if all its components are.

    Raises `UserError` for other actions, and for more than 2**20 combinations.
    """
    space = env.action_space
    if not isinstance(space, MultiDiscrete):
        raise UserError(
            f"The action of '{env.name}' is {space}; flat_actions needs a MultiDiscrete space."
        )
    sizes = space.sizes
    count = math.prod(sizes)
    if count > MOST_ACTIONS:
        raise UserError(
            f"The actions of '{env.name}' have {count} combinations; there may be at most "
            f"{MOST_ACTIONS} (keep them MultiDiscrete)."
        )
    strides = np.asarray([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], np.int32)

    def components(action: Array) -> Array:
        return action // strides % np.asarray(sizes, np.int32)

    def combine(action: Array) -> Array:
        return jnp.sum(action * strides, dtype=jnp.int32)

    def legal(mask: Array) -> Array:
        # One axis for each component, combined by broadcasting: no table of combinations.
        rows = [
            mask[i, :n].reshape([-1 if i == j else 1 for j in range(len(sizes))])
            for i, n in enumerate(sizes)
        ]
        return functools.reduce(jnp.logical_and, rows).ravel()

    return _replace_actions(env, Discrete(count), components, combine, legal)


def _replace_actions(
    env: Environment,
    space: Any,
    to_inner: Callable[[Array], Array],
    from_inner: Callable[[Array], Array],
    legal: Callable[[Array], Array] | None = None,
) -> Environment:
    """Give `env` the actions of `space`; `from_inner` converts those of the expert."""

    def with_legal_actions(result):
        state, timestep = result
        if legal is None or timestep.legal_actions is None:
            return result
        mask = legal(timestep.legal_actions)
        return state, dataclasses.replace(timestep, legal_actions=mask)

    expert = env.expert
    return dataclasses.replace(
        env,
        reset=lambda key, params: with_legal_actions(env.reset(key, params)),
        step=lambda key, state, action, params: with_legal_actions(
            env.step(key, state, to_inner(action), params)
        ),
        action_space=space,
        expert=expert and (lambda state, params: from_inner(expert(state, params))),
        rules=None,
    )
