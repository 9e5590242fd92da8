"""Noise on observations and on actions."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import (
    Box,
    Discrete,
    MultiDiscrete,
    bounds,
    is_space,
    sample,
    sample_legal,
)
from jaxrl.core.types import Array, Environment, Key, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import lift_fields, space_leaves


@struct
class ObservationNoise:
    """Parameters of `observation_noise`."""

    inner: Tree
    observation_noise: Tree  # standard deviation: one for all leaves, or a tree with one for each


def observation_noise(env: Environment, scale: Any = 0.1) -> Environment:
    """Add independent Gaussian noise to observations.

    scale: standard deviation, in units of the observation: a number, an array that broadcasts to
        it, or (for a tree of observations) a tree of these; `params.observation_noise`.

    Boxes of floats become unbounded; in boxes of integers (pixels) the sum is rounded and clipped
    to the bounds; bools, `Discrete` and `MultiDiscrete` stay as they are. `goals` is None, since
    the achieved goal cannot be read off a noisy observation.

    Raises `UserError` for a scale that does not fit, and if there is nothing to add noise to.
    """
    treedef = jax.tree.structure(env.observation_space, is_leaf=is_space)
    spaces = space_leaves(env.observation_space)
    if not any(_noisy(space) for space in spaces):
        raise UserError(
            f"The observation of '{env.name}' is {env.observation_space}; it must hold a Box of "
            "floats or integers for noise to be added to."
        )
    what = "scale of the observation noise"
    if isinstance(scale, numbers.Real):
        return _observation_noise(env, arguments.number(env, what, scale))
    try:
        parts = treedef.flatten_up_to(scale)
    except ValueError as error:
        raise UserError(
            f"The {what} of '{env.name}' is {scale!r}; it must be a number or have the structure "
            f"of the observation, {treedef}."
        ) from error
    pairs = zip(parts, spaces, strict=True)
    return _observation_noise(
        env, tuple(arguments.numbers_of(env, what, part, space.shape) for part, space in pairs)
    )


@functools.cache
def _observation_noise(env: Environment, scale: float | tuple) -> Environment:
    treedef = jax.tree.structure(env.observation_space, is_leaf=is_space)
    spaces = space_leaves(env.observation_space)
    if isinstance(scale, tuple):
        scale = treedef.unflatten([arguments.as_param(part) for part in scale])

    def with_noise(key, timestep, scale):
        parts = treedef.flatten_up_to(timestep.observation)
        shared = jax.tree.structure(scale) != treedef
        scales = [scale] * len(parts) if shared else treedef.flatten_up_to(scale)
        noisy = [i for i, space in enumerate(spaces) if _noisy(space)]
        for i, k in zip(noisy, jax.random.split(key, len(noisy)), strict=True):
            parts[i] = _with_noise(k, parts[i], scales[i], spaces[i])
        return dataclasses.replace(timestep, observation=treedef.unflatten(parts))

    def reset(key, params):
        noise_key, key = jax.random.split(key)
        state, timestep = env.reset(key, params.inner)
        return state, with_noise(noise_key, timestep, params.observation_noise)

    def step(key, state, action, params):
        noise_key, key = jax.random.split(key)
        state, timestep = env.step(key, state, action, params.inner)
        return state, with_noise(noise_key, timestep, params.observation_noise)

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=ObservationNoise(env.params, scale),
        observation_space=treedef.unflatten([_widen(space) for space in spaces]),
        **(lift_fields(env, params=True) | {"goals": None}),
    )


def _noisy(space: Any) -> bool:
    return isinstance(space, Box) and jnp.dtype(space.dtype) != jnp.bool_


def _widen(space: Any) -> Any:
    if not (_noisy(space) and jnp.issubdtype(space.dtype, jnp.floating)):
        return space
    return dataclasses.replace(space, low=-math.inf, high=math.inf)


def _with_noise(key: Key, value: Array, scale: Any, space: Box) -> Array:
    noise = jnp.asarray(scale, jnp.float32) * jax.random.normal(key, value.shape)
    if jnp.issubdtype(value.dtype, jnp.floating):
        return value + noise.astype(value.dtype)
    low, high = (side.astype(np.float32) for side in bounds(space))
    return jnp.clip(jnp.round(value + noise), low, high).astype(value.dtype)


@struct
class ActionNoise:
    """Parameters of `action_noise`."""

    inner: Tree
    action_noise: Any  # standard deviation: a number, or an array of the action's shape
    action_noise_correlation: float  # correlation of the noise between successive steps


@struct
class ActionNoiseState:
    """State of the wrapped environment and the noise of the last step, in standard deviations."""

    inner: Tree
    noise: Array


def action_noise(env: Environment, scale: Any = 0.1, correlation: float = 0.0) -> Environment:
    """Add Gaussian noise to actions, as imperfect actuators do.

    scale: standard deviation, in units of the action: a number or an array that broadcasts to it;
        `params.action_noise`.
    correlation: correlation of the noise between successive steps, from 0 (white) to 1 (constant
        through an episode); `params.action_noise_correlation`. The noise is a stationary AR(1)
        process, an Ornstein-Uhlenbeck process with rate `-log(correlation)` per step: a correlated
        one models an external disturbance that is never observed.

    Actions are one `Box`; the sum may lie beyond its bounds, since environments clip. For discrete
    actions use `random_actions` and `sticky_actions`. Raises `UserError` for other spaces and
    numbers.
    """
    space = env.action_space
    if not (isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.floating)):
        raise UserError(
            f"The action of '{env.name}' is {space}; action noise needs one Box of floats (for "
            "discrete actions there are random_actions and sticky_actions)."
        )
    return _action_noise(
        env,
        arguments.numbers_of(env, "scale of the action noise", scale, space.shape),
        arguments.number(env, "correlation of the action noise", correlation, high=1.0),
    )


@functools.cache
def _action_noise(env: Environment, scale: Any, correlation: float) -> Environment:
    space = env.action_space

    def reset(key, params):
        noise_key, key = jax.random.split(key)
        inner, timestep = env.reset(key, params.inner)
        return ActionNoiseState(inner, jax.random.normal(noise_key, space.shape)), timestep

    def step(key, state, action, params):
        noise_key, key = jax.random.split(key)
        # Drawn at the reset for the first action, so that the process is stationary from the start.
        done = action + (params.action_noise * state.noise).astype(space.dtype)
        inner, timestep = env.step(key, state.inner, done, params.inner)
        noise = autoregressive(noise_key, state.noise, params.action_noise_correlation)
        return ActionNoiseState(inner, noise), timestep

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=ActionNoise(env.params, arguments.as_param(scale), correlation),
        **lift_fields(env, state=True, params=True),
    )


def autoregressive(key: Key, value: Array, correlation: Any) -> Array:
    """Draw the next value of a stationary AR(1) process with mean 0 and standard deviation 1."""
    fresh = jax.random.normal(key, value.shape)
    return correlation * value + jnp.sqrt(1.0 - jnp.square(correlation)) * fresh


@struct
class RandomActions:
    """Parameters of `random_actions`."""

    inner: Tree
    random_action_probability: float


@struct
class RandomActionsState:
    """State of the wrapped environment and its legal actions."""

    inner: Tree
    legal_actions: Tree


def random_actions(env: Environment, probability: float = 0.1) -> Environment:
    """Replace the chosen action by a random legal one at each step with `probability`
    (`params.random_action_probability`): a slippery floor, a trembling hand.

    Actions are `Discrete` or `MultiDiscrete` (then all components are replaced at once). Raises
    `UserError` for other spaces and for a probability outside [0, 1].
    """
    if not isinstance(env.action_space, Discrete | MultiDiscrete):
        raise UserError(
            f"The action of '{env.name}' is {env.action_space}; random actions need a Discrete or "
            "MultiDiscrete space (for a Box there is action_noise)."
        )
    return _random_actions(
        env, arguments.number(env, "probability of a random action", probability, high=1.0)
    )


@functools.cache
def _random_actions(env: Environment, probability: float) -> Environment:
    space = env.action_space

    def reset(key, params):
        inner, timestep = env.reset(key, params.inner)
        return RandomActionsState(inner, timestep.legal_actions), timestep

    def step(key, state, action, params):
        slip_key, action_key, key = jax.random.split(key, 3)
        if state.legal_actions is None:
            other = sample(space, action_key)
        else:
            other = sample_legal(state.legal_actions, action_key)
        slips = jax.random.uniform(slip_key) < params.random_action_probability
        done = jnp.where(slips, other, action).astype(space.dtype)
        inner, timestep = env.step(key, state.inner, done, params.inner)
        return RandomActionsState(inner, timestep.legal_actions), timestep

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=RandomActions(env.params, probability),
        **lift_fields(env, state=True, params=True),
    )
