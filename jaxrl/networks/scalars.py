"""Numbers that are learnt."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core.types import Array


class Positive(nn.Module):
    """A positive number, such as a temperature: the exponential of its one parameter, 1 at
    first."""

    @nn.compact
    def __call__(self) -> Array:
        return jnp.exp(self.param("log", nn.initializers.zeros, ()))
