"""Feed-forward torsos."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core.errors import unknown
from jaxrl.core.types import Array
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}


def activation(name: str) -> Callable[[Array], Array]:
    """The activation of that name. Raises `UserError` where there is none."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def normalized(x: Array, layer_norm: bool) -> Array:
    """`x`, or where `layer_norm` its last axis with mean 0 and variance 1, times and plus what is
    learnt (Ba et al., 2016). Within a module's compact method."""
    return nn.LayerNorm()(x) if layer_norm else x


class MLP(nn.Module):
    """Dense layers of the given widths, each followed by a `layer_norm` if asked for, and by the
    activation: [..., D] -> [..., H].

    normalization: makes a layer, called with features and whether to `train`, that stands before
        the first and after each activation; None for none.
    """

    widths: tuple[int, ...]
    activation: str = "tanh"
    initializer: str = "lecun"
    normalization: Callable[[], nn.Module] | None = None
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        x = self._normalized(x, train)
        for width in self.widths:
            x = dense(width, initializer(self.initializer, math.sqrt(2)))(x)
            x = activation(self.activation)(normalized(x, self.layer_norm))
            x = self._normalized(x, train)
        return x

    def _normalized(self, x: Array, train: bool) -> Array:
        return x if self.normalization is None else self.normalization()(x, train)


class Convolution(nn.Module):
    """3 x 3 convolutions of the given numbers of channels, stride 1, no padding, each followed by
    a `layer_norm` of its channels if asked for and by the activation, and flattened:
    [..., H, W, C] -> [..., D]. Integers and booleans are read as numbers. (Young & Tian, 2019,
    "MinAtar", use one of 16 channels.)"""

    channels: tuple[int, ...]
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch = x.shape[:-3]
        x = x.astype(jnp.float32).reshape(-1, *x.shape[-3:])
        for channels in self.channels:
            x = nn.Conv(channels, (3, 3), padding="VALID")(x)
            x = activation(self.activation)(normalized(x, self.layer_norm))
        return x.reshape(*batch, -1)
