"""Numbers that are learnt."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core.types import Array


class Number(nn.Module):
    """Any number, such as an average reward: its one parameter, 0 at first."""

    @nn.compact
    def __call__(self) -> Array:
        return self.param("value", nn.initializers.zeros, ())


class Positive(nn.Module):
    """A positive number, such as a temperature: the exponential of its one parameter, 1 at
    first."""

    @nn.compact
    def __call__(self) -> Array:
        return jnp.exp(self.param("log", nn.initializers.zeros, ()))
