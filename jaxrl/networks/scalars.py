"""Modules that are a single learned number."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.types import Array


class Number(nn.Module):
    """Any number, such as an average reward: the parameter itself, 0 at first."""

    @nn.compact
    def __call__(self) -> Array:
        return self.param("value", nn.initializers.zeros, ())


class Positive(nn.Module):
    """A positive number, such as a temperature: the exponential of a parameter, `start` at
    first."""

    start: float = 1.0

    @nn.compact
    def __call__(self) -> Array:
        return jnp.exp(self.param("log", nn.initializers.constant(math.log(self.start)), ()))


class Softplus(nn.Module):
    """A positive number, such as a Lagrange multiplier: the softplus of a parameter, `start` at
    first. Far above 1 it changes as much as the parameter does, however large it is."""

    start: float = 1.0

    @nn.compact
    def __call__(self) -> Array:
        raw = self.start + math.log(-math.expm1(-self.start))  # works even if exp(start) overflows
        return jax.nn.softplus(self.param("raw", nn.initializers.constant(raw), ()))
