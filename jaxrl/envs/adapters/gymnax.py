"""Environments of gymnax (Lange, 2022), by names such as `gymnax/CartPole-v1`.

Runs gymnax's own `reset_env` and `step_env`, without its auto-reset, with its parameters as
`Environment.params`. Its clock (`max_steps_in_episode`, kept in the state) truncates; `step_env`
says what terminates. Actions are clipped to their box.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete, Space, example
from jaxrl.core.types import Environment, TimeStep
from jaxrl.envs import timesteps
from jaxrl.envs.adapters import check_name, construct, package
from jaxrl.envs.adapters.conversions import box, cast, cast_like, clip, stable_shapes


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of gymnax's environment `name`. Raises `UserError` if there is none."""
    check_name("gymnax", name, package("gymnax").registered_envs)
    return functools.partial(build, name)


def build(name: str, max_steps_in_episode: int = 0) -> Environment:
    """Build gymnax's environment `name`; `max_steps_in_episode` replaces its own time limit."""
    theirs, params = construct(f"gymnax/{name}", lambda: package("gymnax").make(name))
    if max_steps_in_episode:
        params = params.replace(max_steps_in_episode=max_steps_in_episode)
    observation_space = _space(theirs.observation_space(params))
    action_space = _space(theirs.action_space(params))

    begin, follow = jax.jit(theirs.reset_env), jax.jit(theirs.step_env)  # for eager use

    def following(key, state, action, params):
        return follow(key, state, clip(action_space, action), params)

    key, action = random.key(0), example(action_space)
    shapes = construct(
        f"gymnax/{name}",
        lambda: stable_shapes(
            lambda: begin(key, params)[1], lambda state: following(key, state, action, params)[1]
        ),
    )

    def reset(key, params):
        observation, state = begin(key, params)
        return cast_like(shapes, state), timesteps.first(cast(observation_space, observation))

    def step(key, state, action, params):
        observation, state, reward, terminated, _ = following(key, state, action, params)
        terminated = jnp.asarray(terminated, bool)
        timestep = TimeStep(
            cast(observation_space, observation),
            jnp.asarray(reward, jnp.float32),
            terminated,
            truncated=theirs.is_truncated(state, params) & ~terminated,
            first=jnp.zeros((), bool),
        )
        return cast_like(shapes, state), timestep

    return Environment(
        f"gymnax/{name}",
        reset,
        step,
        params,
        observation_space,
        action_space,
        max_steps=int(params.max_steps_in_episode),
    )


def _space(space: Any) -> Space:
    match type(space).__name__:
        case "Discrete":
            return Discrete(int(space.n))
        case "Box":
            low, high = np.asarray(space.low), np.asarray(space.high)
            shape = space.shape if isinstance(space.shape, tuple) else (space.shape,)
            return box(low, high, shape, space.dtype)
        case "Dict":
            return {key: _space(part) for key, part in space.spaces.items()}
        case "Tuple":
            return tuple(_space(part) for part in space.spaces)
    raise UserError(f"gymnax's space {space!r} is none of Discrete, Box, Dict and Tuple.")
