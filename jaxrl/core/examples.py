"""Example time steps, to initialize networks with."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, TimeStep


def example_timestep(env: Environment, agents: bool = False) -> TimeStep:
    """Return a time step of zeros with every channel that `env` has, batched [1].

    agents: whether the algorithm learns from several agents. If not, raises `UserError` for an
        environment that rewards several.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = jax.eval_shape(lambda key: env.reset(key, env.params)[1], key)
    if shapes.reward.shape and not agents:
        raise UserError(
            f"'{env.name}' rewards {shapes.reward.shape[0]} agents separately; this algorithm "
            "learns from a single reward."
        )
    # NumPy's, since each zero of JAX is a program to be compiled.
    return jax.tree.map(lambda s: np.zeros((1, *s.shape), s.dtype), shapes)
