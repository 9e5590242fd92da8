"""Feed-forward torsos."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.errors import unknown
from jaxrl.core.types import Array
from jaxrl.networks.dense import dense, matmul
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
    learned (Ba et al., 2016). Within a module's compact method."""
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


BLOCK = 32  # images whose slices a CPU's cache holds


class Conv(nn.Module):
    """A 3 x 3 convolution, stride 1, no padding: [N, H, W, C] -> [N, H - 2, W - 2, width].

    As one matrix product of nine slices side by side ("slices"), or as XLA's own ("direct"); "auto"
    is what suits the device. On a CPU that is "slices", since in a loop, as training is one, the
    gradients of "direct" are several times slower; of many images they are made, and for gradients
    made again, in blocks that fit the cache (experiments/bench/convolution.py).
    """

    width: int
    form: str = "auto"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init, (height, width) = nn.initializers.lecun_normal(), (n - 2 for n in x.shape[1:3])
        kernel = self.param("kernel", init, (3, 3, x.shape[-1], self.width))
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        if self.form == "direct" or (self.form == "auto" and jax.default_backend() != "cpu"):
            order = ("NHWC", "HWIO", "NHWC")
            return (
                jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", None, None, order) + bias
            )

        def product(x):
            parts = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            rows = jnp.concatenate(parts, -1).reshape(-1, 9 * x.shape[-1])
            y = matmul(rows, kernel.reshape(-1, self.width)) + bias
            return y.reshape(-1, height, width, self.width)

        if len(x) <= 8 * BLOCK or len(x) % BLOCK:
            return product(x)
        y = jax.lax.map(jax.checkpoint(product), x.reshape(-1, BLOCK, *x.shape[1:]))
        return y.reshape(-1, *y.shape[2:])


class Convolution(nn.Module):
    """3 x 3 convolutions of the given numbers of channels, stride 1, no padding, each followed by
    a `layer_norm` of its channels if asked for and by the activation, and flattened:
    [..., H, W, C] -> [..., D]. Integers and booleans are read as numbers. (Young & Tian, 2019,
    "MinAtar", use one of 16 channels.)"""

    channels: tuple[int, ...]
    activation: str = "relu"
    layer_norm: bool = False
    form: str = "auto"  # as in `Conv`

    @nn.compact
    def __call__(self, x: Array) -> Array:
        # The last axis before the image leads: it may be split over devices, and merged behind
        # another one it would be gathered on each.
        x = jnp.moveaxis(x, -4, 0) if x.ndim > 4 else x
        y = x.astype(jnp.float32).reshape(-1, *x.shape[-3:])
        for channels in self.channels:
            y = Conv(channels, self.form)(y)
            y = activation(self.activation)(normalized(y, self.layer_norm))
        y = y.reshape(*x.shape[:-3], -1)
        return jnp.moveaxis(y, 0, -2) if x.ndim > 4 else y
