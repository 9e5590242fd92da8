"""Feed-forward torsos: perceptrons and convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.spaces import Box, Space
from jaxrl.core.types import Array
from jaxrl.networks.compute import product
from jaxrl.networks.dense import hidden_dense, hidden_matmul
from jaxrl.networks.initializers import initializer

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}


def activation(name: str) -> Callable[[Array], Array]:
    """Return the activation called `name`. Raise `UserError` if there is none."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def optional_layer_norm(x: Array, layer_norm: bool) -> Array:
    """Return `x`, or its layer normalization over the last axis if `layer_norm` (Ba et al., 2016).

    To be called in a module's compact method, since it has a learned scale and shift.
    """
    return nn.LayerNorm()(x) if layer_norm else x


class MLP(nn.Module):
    """A multilayer perceptron: [..., D] -> [..., H].

    Dense layers of the given `widths`, each followed by layer normalization if `layer_norm`, and
    by the activation.

    normalization: makes a normalization layer, which is called with features and `train`. One
        precedes the first dense layer, and one follows each activation; None for none.
    """

    widths: tuple[int, ...]
    activation: str = "tanh"
    initializer: str = "lecun"
    normalization: Callable[[], nn.Module] | None = None
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        x = self._normalize(x, train)
        for width in self.widths:
            x = hidden_dense(width, initializer(self.initializer, math.sqrt(2)))(x)
            x = activation(self.activation)(optional_layer_norm(x, self.layer_norm))
            x = self._normalize(x, train)
        return x

    def _normalize(self, x: Array, train: bool) -> Array:
        return x if self.normalization is None else self.normalization()(x, train)


BLOCK = 32  # number of images whose slices fit a CPU's cache


class Conv(nn.Module):
    """A 3 x 3 convolution, stride 1, no padding: [N, H, W, C] -> [N, H - 2, W - 2, width].

    The `form` is one matrix product of nine slices side by side ("slices"), XLA's own convolution
    ("direct"), or whichever suits the device ("auto"). On a CPU that is "slices", since inside a
    loop, such as training, the gradients of "direct" are several times slower. For many images
    the slices are computed in blocks that fit the cache, and again for gradients
    (experiments/bench/convolution.py).
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
            convolve = lambda x, w: jax.lax.conv_general_dilated(
                x, w, (1, 1), "VALID", None, None, order
            )
            return product(convolve, x, kernel) + bias

        def of_slices(x):
            parts = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            rows = jnp.concatenate(parts, -1).reshape(-1, 9 * x.shape[-1])
            y = hidden_matmul(rows, kernel.reshape(-1, self.width)) + bias
            return y.reshape(-1, height, width, self.width)

        if len(x) <= 8 * BLOCK or len(x) % BLOCK:
            return of_slices(x)
        y = jax.lax.map(jax.checkpoint(of_slices), x.reshape(-1, BLOCK, *x.shape[1:]))
        return y.reshape(-1, *y.shape[2:])


class Convolution(nn.Module):
    """A stack of 3 x 3 convolutions, flattened: [..., H, W, C] -> [..., D].

    The convolutions have the given numbers of `channels`, stride 1 and no padding. Each is followed
    by layer normalization of its channels if `layer_norm`, and by the activation. Integers and
    booleans are converted to float32. Young & Tian, 2019, "MinAtar", use one convolution of 16
    channels.
    """

    channels: tuple[int, ...]
    activation: str = "relu"
    layer_norm: bool = False
    form: str = "auto"  # as in `Conv`

    @nn.compact
    def __call__(self, x: Array) -> Array:
        def encode(y):
            for channels in self.channels:
                y = Conv(channels, self.form)(y)
                y = activation(self.activation)(optional_layer_norm(y, self.layer_norm))
            return y

        return _encode_images(encode, x)


def _encode_images(encode: Callable[[Array], Array], x: Array) -> Array:
    """Apply `encode`, [N, H, W, C] -> [N, ...], to images [..., H, W, C]; return [..., D]."""
    # The last axis before the image moves to the front. It may be split over devices, and
    # merging it behind another axis would gather it on each of them.
    x = jnp.moveaxis(x, -4, 0) if x.ndim > 4 else x
    y = encode(x.astype(jnp.float32).reshape(-1, *x.shape[-3:]))
    y = y.reshape(*x.shape[:-3], -1)
    return jnp.moveaxis(y, 0, -2) if x.ndim > 4 else y


def _convolve(x: Array, kernel: Array, *args: Any, **options: Any) -> Array:
    """Call `conv_general_dilated` as flax does."""
    convolve = lambda x, kernel: jax.lax.conv_general_dilated(x, kernel, *args, **options)
    return product(convolve, x, kernel)


# Channels, kernel and stride of each layer.
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
DREAMER = ((32, 4, 2), (64, 4, 2), (128, 4, 2), (256, 4, 2))
LEAST_PIXELS = 36  # sides of the smallest image that the three layers of `NATURE` fit in


class PixelEncoder(nn.Module):
    """Strided convolutions of pictures, flattened: [..., H, W, C] -> [..., D].

    layers: channels, kernel and stride of each. `NATURE` is that of Mnih et al., 2015,
    "Human-level control through deep reinforcement learning", for 84 x 84 pixels; `DREAMER` that
    of Hafner et al., 2020, "Dream to control", appendix A, for 64 x 64. There is no padding.
    """

    layers: tuple[tuple[int, int, int], ...]
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        def encode(y):
            for channels, kernel, stride in self.layers:
                size = (kernel, kernel)
                y = nn.Conv(
                    channels, size, stride, padding="VALID", conv_general_dilated=_convolve
                )(y)
                y = activation(self.activation)(optional_layer_norm(y, self.layer_norm))
            return y

        return _encode_images(encode, x)


def image_encoder(
    space: Space, channels: tuple[int, ...] = (), activation: str = "relu", layer_norm: bool = False
) -> nn.Module | None:
    """Return the encoder of the images of `space`; None for observations that are flattened.

    With `channels` it is a `Convolution`. Without, pictures of 64 x 64 pixels have Dreamer's
    encoder, others with sides of at least 36 pixels that of Nature DQN, and smaller grids none.

    Raises `UserError` for pictures of which one side is shorter than that.
    """
    if channels:
        return Convolution(channels, activation, layer_norm)
    shape = space.shape if isinstance(space, Box) else ()
    if len(shape) != 3 or max(shape[:2]) < LEAST_PIXELS:
        return None
    if min(shape[:2]) < LEAST_PIXELS:
        raise UserError(
            f"No encoder fits images {list(shape)}, read as [height, width, channels]: both sides "
            f"must have at least {LEAST_PIXELS} pixels; resize them, move the channels to the last "
            "axis, or give a network of your own."
        )
    layers = DREAMER if shape[:2] == (64, 64) else NATURE
    return PixelEncoder(layers, layer_norm=layer_norm)  # with the papers' rectifiers
