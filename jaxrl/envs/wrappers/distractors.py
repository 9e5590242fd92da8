"""Distractors: exogenous noise in observations that actions do not influence."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, bounds
from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import goals_behind, joined_bounds, lift_fields
from jaxrl.envs.wrappers.noise import autoregressive

NAME = "distractors"  # name of their entry in observations that are a dict


@struct
class Distractors:
    """Parameters of `distractors`."""

    inner: Tree
    distractor_scale: Any  # standard deviation of distractors: a number or [count]
    distractor_correlation: Any  # correlation between successive steps: a number or [count]


@struct
class State:
    """State of the wrapped environment and the distractors."""

    inner: Tree
    distractors: Array


def distractors(
    env: Environment, count: int = 8, correlation: Any = 0.0, scale: Any = 1.0
) -> Environment:
    """Add `count` numbers to the observation that have nothing to do with the environment.

    correlation: correlation of a distractor with itself one step later, from 0 (independent noise)
        to 1 (constant through an episode); a number or one for each,
        `params.distractor_correlation`.
    scale: standard deviation; a number or one for each, `params.distractor_scale`.

    Each is a stationary AR(1) process (an Ornstein-Uhlenbeck process with rate `-log(correlation)`
    per step) that starts anew with each episode. They are appended to a float vector, or become the
    entry `distractors` of a dict; any other observation becomes a dict of `observation` and
    `distractors`.

    Raises `UserError` for numbers out of range.
    """
    count = arguments.positive_integer(env, "number of distractors", count)
    return _distractors(
        env,
        count,
        arguments.numbers_of(env, "correlation of distractors", correlation, (count,), high=1.0),
        arguments.numbers_of(env, "scale of distractors", scale, (count,)),
    )


@functools.cache
def _distractors(env: Environment, count: int, correlation: Any, scale: Any) -> Environment:
    space, join, split = _append(env, count)

    def with_distractors(inner, timestep, numbers, params):
        observation = join(timestep.observation, params.distractor_scale * numbers)
        return State(inner, numbers), dataclasses.replace(timestep, observation=observation)

    def reset(key, params):
        noise_key, key = jax.random.split(key)
        inner, timestep = env.reset(key, params.inner)
        return with_distractors(inner, timestep, jax.random.normal(noise_key, (count,)), params)

    def step(key, state, action, params):
        noise_key, key = jax.random.split(key)
        inner, timestep = env.step(key, state.inner, action, params.inner)
        numbers = autoregressive(noise_key, state.distractors, params.distractor_correlation)
        return with_distractors(inner, timestep, numbers, params)

    fields = lift_fields(env, state=True, params=True)
    fields["goals"] = goals_behind(fields.get("goals"), split)
    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=Distractors(env.params, arguments.as_param(scale), arguments.as_param(correlation)),
        observation_space=space,
        **fields,
    )


def _append(env: Environment, count: int) -> tuple[Any, Callable, Callable]:
    """Return the space with `count` distractors, and functions that add and drop them."""
    space, part = env.observation_space, Box(-math.inf, math.inf, (count,))
    if isinstance(space, Box) and len(space.shape) == 1 and space.dtype == jnp.float32:
        size = space.shape[0]
        both = Box(*joined_bounds([space, part]), (size + count,))
        return both, lambda x, numbers: jnp.concatenate([x, numbers]), lambda x: x[..., :size]
    if not isinstance(space, dict):
        return (
            {"observation": space, NAME: part},
            lambda x, numbers: {"observation": x, NAME: numbers},
            lambda x: x["observation"],
        )
    if NAME in space:
        raise UserError(
            f"The observation of '{env.name}' has '{NAME}' already; add more of them rather "
            "than a second wrapper."
        )
    return (
        space | {NAME: part},
        lambda x, numbers: x | {NAME: numbers},
        lambda x: {k: v for k, v in x.items() if k != NAME},
    )


@struct
class ImageDistractors:
    """Parameters of `image_distractors`."""

    inner: Tree
    distractor_density: float  # fraction of cells that are lit
    distractor_correlation: float  # correlation of a cell with itself one step later


def image_distractors(
    env: Environment, planes: int = 1, density: float = 0.1, correlation: float = 0.0
) -> Environment:
    """Light random cells in an image observation.

    planes: number of channels of such cells, added after those of the image; 0 lights cells of the
        image itself instead (the brighter of the two is shown).
    density: fraction of cells that are lit; `params.distractor_density`.
    correlation: correlation of a cell with itself one step later, from 0 (independent noise) to 1
        (a still picture, a new one for each episode); `params.distractor_correlation`. At each step
        a cell is redrawn with probability `1 - correlation`.

    The observation is one `Box` `[H, W, C]` with finite bounds: a lit cell has its channel's upper
    bound, an unlit one its lower bound. With `planes=0`, `goals` is None. Raises `UserError` for
    other observations and numbers out of range.
    """
    space = env.observation_space
    if not (isinstance(space, Box) and len(space.shape) == 3 and _finite(space)):
        raise UserError(
            f"The observation of '{env.name}' is {space}; image distractors need one Box [H, W, C] "
            "with finite bounds."
        )
    if planes != 0:
        planes = arguments.positive_integer(env, "number of distractor planes", planes)
    return _image_distractors(
        env,
        planes,
        arguments.number(env, "density of distractors", density, high=1.0),
        arguments.number(env, "correlation of distractors", correlation, high=1.0),
    )


@functools.cache
def _image_distractors(
    env: Environment, planes: int, density: float, correlation: float
) -> Environment:
    space = env.observation_space
    low, high = bounds(space)
    channels = space.shape[-1]
    if planes:
        low, high = (np.repeat(x.max(-1, keepdims=True), planes, -1) for x in (low, high))

    def with_distractors(inner, timestep, lit):
        noise = jnp.where(lit, high, low)
        image = timestep.observation
        image = jnp.concatenate([image, noise], -1) if planes else jnp.maximum(image, noise)
        return State(inner, lit), dataclasses.replace(timestep, observation=image)

    def reset(key, params):
        noise_key, key = jax.random.split(key)
        inner, timestep = env.reset(key, params.inner)
        return with_distractors(
            inner, timestep, jax.random.uniform(noise_key, low.shape) < params.distractor_density
        )

    def step(key, state, action, params):
        noise_key, key = jax.random.split(key)
        inner, timestep = env.step(key, state.inner, action, params.inner)
        # One number per cell decides both: below the correlation the cell stays; above it, the rest
        # of the unit interval, stretched, is the new draw.
        number = jax.random.uniform(noise_key, low.shape)
        stays = number < params.distractor_correlation
        fresh = number - params.distractor_correlation < params.distractor_density * (
            1.0 - params.distractor_correlation
        )
        return with_distractors(inner, timestep, jnp.where(stays, state.distractors, fresh))

    fields = lift_fields(env, state=True, params=True)
    goals = goals_behind(fields.get("goals"), lambda image: image[..., :channels])
    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=ImageDistractors(env.params, density, correlation),
        observation_space=_with_planes(space, low, high) if planes else space,
        **(fields | {"goals": goals if planes else None}),
    )


def _finite(space: Box) -> bool:
    return all(np.all(np.isfinite(np.asarray(side, np.float32))) for side in bounds(space))


def _with_planes(space: Box, low: np.ndarray, high: np.ndarray) -> Box:
    shape = (*space.shape[:-1], space.shape[-1] + low.shape[-1])
    if np.ndim(space.low) == np.ndim(space.high) == 0:  # as in most images: no long tuples
        return dataclasses.replace(space, shape=shape)
    low, high = (
        arguments.tuples(np.concatenate([whole, part], -1).tolist())
        for whole, part in zip(bounds(space), (low, high), strict=True)
    )
    return Box(low, high, shape, space.dtype)
