"""Layers with noisy weights, by which a network learns how to explore."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.staging import isolate
from jaxrl.core.types import Array
from jaxrl.networks.dense import hidden_matmul, matmul


class NoisyDense(nn.Module):
    """A linear layer with factorized Gaussian noise on its weights: [..., D] -> [..., width].

    y = x (M + S o f(e) f(e')^T) + m + s o f(e') with f(e) = sign(e) sqrt |e|. e [D] and e' [width]
    are standard normal, drawn once for all rows from the random stream `noise`. Without that stream
    there is no noise, and y is the mean.

    Source: Fortunato et al., 2018, "Noisy networks for exploration", equations 9 to 11 and section
    3.2.
    """

    width: int
    sigma: float = 0.5  # initial scale of the noise is sigma / sqrt(D)
    hidden: bool = False  # whether it is not the last layer

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size = x.shape[-1]
        bound = 1 / math.sqrt(size)
        uniform = lambda key, shape: jax.random.uniform(key, shape, minval=-bound, maxval=bound)
        constant = nn.initializers.constant(self.sigma * bound)
        weight = self.param("weight", uniform, (size, self.width))
        bias = self.param("bias", uniform, (self.width,))
        weight_scale = self.param("weight_scale", constant, (size, self.width))
        bias_scale = self.param("bias_scale", constant, (self.width,))
        if self.has_rng("noise"):
            noise = jax.random.normal(self.make_rng("noise"), (size + self.width,))
            # Otherwise XLA would transform the noise again for every weight.
            noise = isolate(noise[0] < math.inf, _signed_root, noise)
            along, across = noise[:size], noise[size:]
            weight += weight_scale * jnp.outer(along, across)
            bias += bias_scale * across
        return (hidden_matmul if self.hidden else matmul)(x, weight) + bias


def _signed_root(noise: Array) -> Array:
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
