"""An environment that breaks under some policies."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.spaces import Box
from jaxrl.core.types import Environment, TimeStep


def cliff(edge: float = 100.0) -> Environment:
    """Return an environment of two steps, each rewarded with its action, or with NaN if that is not
    between -`edge` and `edge`.

    The observation is the last action, scaled and clipped to [-1, 1].
    """

    def observe(where, reward, step):
        done = step == 2
        return TimeStep(where[None], reward, done, jnp.bool_(0), step == 0)

    def reset(key, params):
        return jnp.int32(0), observe(jnp.float32(1), jnp.float32(0), jnp.int32(0))

    def step(key, state, action, params):
        reward = jnp.where(jnp.abs(action[0]) < params, action[0], jnp.nan)
        return state + 1, observe(jnp.clip(action[0] / params, -1, 1), reward, state + 1)

    space = Box(-jnp.inf, jnp.inf, (1,))
    return Environment("cliff", reset, step, jnp.float32(edge), Box(-1, 1, (1,)), space, 2)


NOWHERE = cliff(0.0)  # every return is NaN
