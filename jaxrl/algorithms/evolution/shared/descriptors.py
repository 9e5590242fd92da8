"""Descriptors of episodes: numbers from their last time steps."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Array, Environment, TimeStep


def descriptor(env: Environment, names: tuple[str, ...]) -> Callable[[TimeStep], Array]:
    """Return `describe(timestep [...]) -> float32 [..., K]`, with one number for each of `names`: a
    metric in the `TimeStep.metrics` of `env`, or `observation.i`, the i-th number of a flat
    observation.

    Raises `UserError` for names that `env` does not have.
    """
    shapes = jax.eval_shape(lambda key: env.reset(key, env.params)[1], jax.random.key(0))
    metrics = shapes.metrics or {}
    indices = {name: _index(env, name, shapes) for name in names if name.startswith("observation.")}
    for name in names:
        if name not in indices and name not in metrics:
            raise unknown("descriptor", name, [*metrics, "observation.0"])

    def describe(timestep: TimeStep) -> Array:
        parts = [
            timestep.observation[..., indices[name]]
            if name in indices
            else (timestep.metrics or {})[name]
            for name in names
        ]
        rows = [jnp.asarray(part, jnp.float32) for part in parts]
        return jnp.stack(rows, -1) if rows else jnp.zeros((*timestep.reward.shape, 0))

    return describe


def _index(env: Environment, name: str, shapes: TimeStep) -> int:
    text = name.removeprefix("observation.")
    shape = getattr(shapes.observation, "shape", None)
    if shape is None or len(shape) != 1 or not text.isdecimal() or int(text) >= shape[0]:
        raise UserError(
            f"'{name}' is no descriptor of '{env.name}', whose observation has shape {shape}; it "
            "needs a flat observation with that index."
        )
    return int(text)
