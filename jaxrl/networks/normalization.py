"""Normalization layers."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.types import Array


class BatchRenorm(nn.Module):
    """Batch renormalization of features [..., D], with a learned scale and shift (Ioffe, 2017,
    "Batch renormalization", arXiv:1702.03275).

    With `train` the features are normalized by the batch's mean and standard deviation: by these
    alone during the first `warmup` batches, which is batch normalization; afterward they are
    corrected toward the running ones, by a factor of at most `largest_scale` and a shift of at
    most `largest_shift`. Without `train` the features are normalized by the running statistics,
    which lie in the collection `batch_stats` and move by 1 - `momentum` toward each batch's.

    All defaults, the biased running variance, and bounds that apply at once (in the paper they
    widen from batch 5,000 to 40,000) are those of the code of Bhatt et al., 2024, "CrossQ". Unlike
    in that code, `epsilon` is part of every deviation; there it is added only after the correction.
    """

    momentum: float = 0.99
    warmup: int = 100_000
    largest_scale: float = 3.0
    largest_shift: float = 5.0
    epsilon: float = 1e-3

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        size = x.shape[-1:]
        mean = self.variable("batch_stats", "mean", jnp.zeros, size)
        variance = self.variable("batch_stats", "variance", jnp.ones, size)
        batches = self.variable("batch_stats", "batches", jnp.zeros, ())
        scale = self.param("scale", nn.initializers.ones, size)
        bias = self.param("bias", nn.initializers.zeros, size)
        deviation = jnp.sqrt(variance.value + self.epsilon)
        if not train:
            return (x - mean.value) / deviation * scale + bias
        axes = tuple(range(x.ndim - 1))
        own_mean, own_variance = x.mean(axes), x.var(axes)
        own_deviation = jnp.sqrt(own_variance + self.epsilon)
        factor = jnp.clip(own_deviation / deviation, 1 / self.largest_scale, self.largest_scale)
        shift = jnp.clip(
            (own_mean - mean.value) / deviation, -self.largest_shift, self.largest_shift
        )
        warm = batches.value >= self.warmup
        factor, shift = jax.lax.stop_gradient(
            (jnp.where(warm, factor, 1.0), jnp.where(warm, shift, 0.0))
        )
        mean.value = self.momentum * mean.value + (1 - self.momentum) * own_mean
        variance.value = self.momentum * variance.value + (1 - self.momentum) * own_variance
        batches.value += 1
        return ((x - own_mean) / own_deviation * factor + shift) * scale + bias
