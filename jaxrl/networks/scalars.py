"""Numbers that are learned."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
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


class Softplus(nn.Module):
    """A positive number, such as a Lagrange multiplier: the softplus of its one parameter, `start`
    at first. Far above 1 it moves as much as the parameter does, whatever its size."""

    start: float = 1.0

    @nn.compact
    def __call__(self) -> Array:
        raw = self.start + math.log(-math.expm1(-self.start))  # also where exp(start) overflows
        return jax.nn.softplus(self.param("raw", nn.initializers.constant(raw), ()))
