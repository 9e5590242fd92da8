"""Time steps of Pendulum with given observations, for tests of dynamics models."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.examples import example_timestep
from jaxrl.envs import make

ENV = make("pendulum")


def make_timestep(observation, terminated):
    """Return time steps with these observations [N, 3] and terminations [N]."""
    example = jax.tree.map(lambda x: x[0], example_timestep(ENV))
    timestep = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(observation), *x.shape)), example)
    return dataclasses.replace(
        timestep,
        observation=jnp.asarray(observation, jnp.float32),
        terminated=jnp.asarray(terminated),
    )
