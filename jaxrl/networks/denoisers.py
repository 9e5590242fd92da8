"""Networks that predict the clean form of noisy actions or trajectories, or the noise in them."""

from __future__ import annotations

import math

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense, hidden_dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP, activation, image_encoder

CONTINUOUS = 10.0  # scale of levels log(sigma) / 4 that are drawn from a continuous law


class LevelFeatures(nn.Module):
    """Features of a noise level: [...] -> [..., size].

    Sines and cosines of `scale` levels at frequencies from 1 to 1 / 10,000 (as of a transformer's
    positions, for levels from 0 to 1), then two dense layers. `size` must be even. Levels that are
    drawn from a continuous law need a small scale: what was learned at one must hold near it.
    """

    size: int = 16
    activation: str = "silu"
    scale: float = 1000.0

    @nn.compact
    def __call__(self, level: Array) -> Array:
        half = self.size // 2
        rate = jnp.exp(-math.log(10_000) * jnp.arange(half) / max(half - 1, 1))
        angle = self.scale * level[..., None] * rate
        x = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        start = initializer("lecun", 1.0)
        x = activation(self.activation)(hidden_dense(2 * self.size, start)(x))
        return hidden_dense(self.size, start)(x)


class ActionDenoiser(nn.Module):
    """A prediction about noisy actions at a time step, such as their noise or their velocity.

    time step [B...], noisy [..., B..., D], level [..., B...], condition [B..., C] or
    [..., B..., C] -> [..., B..., D]. There may be several noisy actions for each time step, along
    axes before its own. Without a level it maps noise to actions in one step. Images are encoded as
    in a policy.
    """

    observation_space: Space
    size: int
    widths: tuple[int, ...]
    activation: str = "silu"
    initializer: str = "lecun"
    level_features: int = 16
    level_scale: float = 1000.0

    @nn.compact
    def __call__(
        self,
        timestep: TimeStep,
        noisy: Array,
        level: Array | None = None,
        condition: Array | None = None,
    ) -> Array:
        encoder = image_encoder(self.observation_space)
        parts = [encoders.features(self.observation_space, timestep, encoder)]
        parts += [] if condition is None else [condition]
        if level is not None:
            parts.append(
                LevelFeatures(self.level_features, self.activation, self.level_scale)(level)
            )
        parts = [jnp.broadcast_to(x, (*noisy.shape[:-1], x.shape[-1])) for x in parts]
        x = jnp.concatenate([noisy, *parts], -1)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        return dense(self.size, initializer(self.initializer, 1.0))(x)


class VectorDenoiser(nn.Module):
    """A prediction about noisy vectors, such as whole transitions: [..., D], level [...] ->
    [..., D].

    Residual blocks of layer normalization, activation and one dense layer (as in SynthER's code);
    the level is added before them.
    """

    size: int
    width: int = 256
    blocks: int = 3
    activation: str = "relu"
    level_scale: float = CONTINUOUS

    @nn.compact
    def __call__(self, noisy: Array, level: Array) -> Array:
        act, start = activation(self.activation), initializer("lecun", 1.0)
        x = hidden_dense(self.width, start)(noisy)
        x = x + LevelFeatures(self.width, "silu", self.level_scale)(level)
        for _ in range(self.blocks):
            x = x + hidden_dense(self.width, start)(act(nn.LayerNorm()(x)))
        return dense(self.size, start)(act(nn.LayerNorm()(x)))


class TemporalConvolution(nn.Module):
    """A convolution along time, with zeros beyond the ends: [..., T, D] -> [..., T, width].

    One matrix product of shifted copies, which on CPUs is faster than a convolution. `kernel` is
    odd: the steps that an output sees are `dilation` apart.
    """

    width: int
    kernel: int = 5
    dilation: int = 1

    @nn.compact
    def __call__(self, x: Array) -> Array:
        reach, length = self.kernel // 2 * self.dilation, x.shape[-2]
        padded = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(reach, reach), (0, 0)])
        starts = range(0, 2 * reach + 1, self.dilation)
        rows = jnp.concatenate([padded[..., i : i + length, :] for i in starts], -1)
        return hidden_dense(self.width, nn.initializers.lecun_normal())(rows)


class TrajectoryDenoiser(nn.Module):
    """A prediction about noisy trajectories: [..., T, D], level [...], condition [..., C] ->
    [..., T, D].

    Residual blocks of two temporal convolutions, whose reach doubles from block to block. The level
    and the condition scale and shift the features between the two (FiLM, as in published diffusion
    policies; those and Diffuser have a U-Net, which reaches as far by halving the length).
    """

    size: int
    width: int = 64
    blocks: int = 3
    kernel: int = 5
    activation: str = "silu"
    level_scale: float = 1000.0

    @nn.compact
    def __call__(self, noisy: Array, level: Array, condition: Array | None = None) -> Array:
        act, start = activation(self.activation), initializer("lecun", 1.0)
        context = LevelFeatures(self.width, self.activation, self.level_scale)(level)
        if condition is not None:
            context = jnp.concatenate([context, condition], -1)
        context = act(hidden_dense(self.width, start)(context))
        x = TemporalConvolution(self.width, self.kernel)(noisy)
        for i in range(self.blocks):
            change = hidden_dense(2 * self.width, start)(context)[..., None, :]
            scale, shift = jnp.split(change, 2, -1)
            y = TemporalConvolution(self.width, self.kernel, 2**i)(act(nn.LayerNorm()(x)))
            y = (1 + scale) * nn.LayerNorm()(y) + shift
            x = x + TemporalConvolution(self.width, self.kernel, 2**i)(act(y))
        return dense(self.size, start)(act(nn.LayerNorm()(x)))
