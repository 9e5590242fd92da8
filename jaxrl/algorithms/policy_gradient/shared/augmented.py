"""Observations with numbers beside them that a policy has to know, such as what was lost so far."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.networks.encoders import flatten


def beside(env: Environment, timestep: TimeStep, numbers: Array) -> TimeStep:
    """A time step [...] of `env` whose observation [..., D + N] is flat, followed by `numbers`
    [..., N]."""
    flat = flatten(env.observation_space, timestep.observation)
    return dataclasses.replace(timestep, observation=jnp.concatenate([flat, numbers], -1))


def space(env: Environment, count: int) -> Box:
    """The space of such observations, with `count` numbers."""
    example = lambda: flatten(env.observation_space, example_timestep(env).observation)
    width = jax.eval_shape(example).shape[-1]
    return Box(-jnp.inf, jnp.inf, (width + count,))
