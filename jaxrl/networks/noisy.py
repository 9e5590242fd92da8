"""Layers whose weights are random, for exploration that the network learns."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.staging import isolate
from jaxrl.core.types import Array
from jaxrl.networks.dense import matmul


class NoisyDense(nn.Module):
    """A linear layer with factorized Gaussian noise on its weights (Fortunato et al., 2018, "Noisy
    networks for exploration", equations 9 to 11 and section 3.2): [..., D] -> [..., width].

    y = x (M + S o f(e) f(e')^T) + m + s o f(e'), f(e) = sign(e) sqrt |e|, with e [D] and e' [width]
    standard normal, drawn from the generator `noise` once for all rows; without one y is the mean.
    """

    width: int
    sigma: float = 0.5  # initial scale of the noise, times 1 / sqrt(D)

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
            # Else XLA would transform it again for every weight.
            noise = isolate(noise[0] < math.inf, _rooted, noise)
            along, across = noise[:size], noise[size:]
            weight += weight_scale * jnp.outer(along, across)
            bias += bias_scale * across
        return matmul(x, weight) + bias


def _rooted(noise: Array) -> Array:
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
