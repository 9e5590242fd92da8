"""Observations augmented with numbers that the policy needs, such as the cost so far."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.networks.encoders import flatten


def append_numbers(env: Environment, timestep: TimeStep, numbers: Array) -> TimeStep:
    """Flatten the observation of a time step [...] of `env` and append `numbers` [..., N], giving
    [..., D + N]."""
    flat = flatten(env.observation_space, timestep.observation)
    return dataclasses.replace(timestep, observation=jnp.concatenate([flat, numbers], -1))


def augmented_space(env: Environment, count: int) -> Box:
    """Return the space of the observations of `append_numbers`, for `count` numbers."""
    example = lambda: flatten(env.observation_space, example_timestep(env).observation)
    width = jax.eval_shape(example).shape[-1]
    return Box(-jnp.inf, jnp.inf, (width + count,))
