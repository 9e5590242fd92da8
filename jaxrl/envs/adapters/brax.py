"""Environments of brax (Freeman et al., 2021, arXiv:2106.13281), by names such as `brax/ant`.

Runs brax's own environment, without its wrappers for episodes and automatic resets: its `done`
terminates and our clock truncates, after 1,000 steps by default. Actions are clipped to the range
of its actuators. brax's per-step metrics are not passed on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import errors, random
from jaxrl.core.spaces import Box, example
from jaxrl.core.types import Environment
from jaxrl.envs import timesteps
from jaxrl.envs.adapters import check_name, construct, package
from jaxrl.envs.adapters.conversions import (
    box,
    cast,
    cast_like,
    clip,
    stable_shapes,
    unbounded_space,
)
from jaxrl.envs.wrappers.time_limit import time_limit

BACKENDS = ("generalized", "mjx", "positional", "spring")


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of brax's environment `name`. Raises `UserError` if there is none."""
    check_name("brax", name, package("brax.envs")._envs)
    return functools.partial(build, name)


def build(name: str, backend: str = "generalized", episode_length: int = 1000) -> Environment:
    """Build brax's environment `name`. Raises `UserError` for a physics backend that brax lacks."""
    if backend not in BACKENDS:
        raise errors.unknown("backend of brax", backend, BACKENDS)
    theirs = construct(
        f"brax/{name}", lambda: package("brax.envs").get_environment(name, backend=backend)
    )
    action_space = _action_space(theirs)

    # Compiled on their own: caches inside brax hold on to the trace in which they were filled, and
    # an eager step of a physics engine takes seconds.
    begin, follow = jax.jit(theirs.reset), jax.jit(theirs.step)

    def following(state, action):
        return follow(state, clip(action_space, action))

    key, action = random.key(0), example(action_space)
    shapes = construct(
        f"brax/{name}",
        lambda: stable_shapes(lambda: begin(key), lambda state: following(state, action)),
    )
    observation_space = unbounded_space(shapes.obs)

    def reset(key, params):
        state = cast_like(shapes, begin(key))
        return state, timesteps.first(cast(observation_space, state.obs))

    def step(key, state, action, params):
        state = cast_like(shapes, following(state, action))
        observation = cast(observation_space, state.obs)
        return state, timesteps.following(observation, state.reward, state.done > 0.5)

    env = Environment(f"brax/{name}", reset, step, (), observation_space, action_space)
    return time_limit(env, episode_length)


def _action_space(theirs) -> Box:
    shape = (theirs.action_size,)
    system = getattr(theirs, "sys", None)
    if system is None:
        return box(-1.0, 1.0, shape, jnp.float32)
    low, high = np.moveaxis(np.asarray(jax.device_get(system.actuator.ctrl_range)), -1, 0)
    return box(low, high, shape, jnp.float32)
