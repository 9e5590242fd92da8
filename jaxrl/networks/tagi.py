"""Networks whose weights are independent normals, inferred in closed form, without gradients.

Tractable approximate Gaussian inference (Goulet, Nguyen and Amiri, 2021, "Tractable approximate
Gaussian inference for Bayesian neural networks", arXiv:2004.09281; the authors' code, cuTAGI). The
units of a layer are taken to be independent normals, a product of weight and unit to be normal with
its exact moments, and a rectifier to be linear around the mean of what it is given.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Key, TimeStep, struct
from jaxrl.networks import encoders

LEAST = 1e-5  # the variance of a weight whose update would leave none, as in cuTAGI


@struct
class Normal:
    """Means and variances of independent normals, of one shape."""

    mean: Array
    variance: Array


@struct
class Layer:
    weight: Normal  # [D, E]
    bias: Normal  # [E]


Layers = tuple[Layer, ...]


@dataclasses.dataclass(frozen=True)
class Tagi:
    """From a time step [...] to normals [..., outputs], through rectified layers of `widths`.

    gain: of the standard deviation of the weights before anything is observed, 1 / sqrt(D) where
        a layer has D inputs. Means are drawn with that of a gain of 1; biases as weights.
    """

    observation_space: Space
    outputs: int
    widths: tuple[int, ...] = (64, 64)
    gain: float = 1.0

    def init(self, key: Key, timestep: TimeStep) -> Layers:
        sizes = [self._inputs(timestep).shape[-1], *self.widths, self.outputs]
        return tuple(
            prior(jax.random.fold_in(key, i), sizes[i], sizes[i + 1], self.gain)
            for i in range(len(sizes) - 1)
        )

    def apply(self, layers: Layers, timestep: TimeStep) -> Normal:
        return forward(layers, self._inputs(timestep))[-1]

    def infer(
        self,
        layers: Layers,
        timestep: TimeStep,
        observed: Normal,
        mask: Array,
        cap: Array | float = 0.0,
    ) -> Layers:
        """As the function `infer`."""
        return infer(layers, self._inputs(timestep), observed, mask, cap)

    def _inputs(self, timestep: TimeStep) -> Array:
        return encoders.features(self.observation_space, timestep)


def prior(key: Key, inputs: int, outputs: int, gain: float = 1.0) -> Layer:
    """What is believed of a layer before anything is observed."""
    scale = inputs**-0.5

    def normal(key: Key, shape: tuple[int, ...]) -> Normal:
        mean = scale * jax.random.normal(key, shape)
        return Normal(mean, jnp.full(shape, (gain * scale) ** 2, mean.dtype))

    weight, bias = jax.random.split(key)
    return Layer(normal(weight, (inputs, outputs)), normal(bias, (outputs,)))


def forward(layers: Layers, x: Array) -> list[Normal]:
    """What every layer says to `x` [B, D], before its rectifier: normals [B, E]; the last has
    none."""
    units, said = Normal(x, jnp.zeros_like(x)), []
    for layer in layers:
        said.append(affine(layer, units))
        units = rectified(said[-1])
    return said


def affine(layer: Layer, x: Normal) -> Normal:
    """Mean and variance of W x + b, exact for independent weights and units."""
    w, b = layer.weight, layer.bias
    by_units = x.variance @ (jnp.square(w.mean) + w.variance)
    variance = by_units + jnp.square(x.mean) @ w.variance + b.variance
    return Normal(x.mean @ w.mean + b.mean, variance)


def rectified(x: Normal) -> Normal:
    """max(x, 0), linear around the mean."""
    passes = (x.mean > 0).astype(x.mean.dtype)
    return Normal(passes * x.mean, passes * x.variance)


def infer(
    layers: Layers, x: Array, observed: Normal, mask: Array, cap: Array | float = 0.0
) -> Layers:
    """The layers after outputs were observed for `x` [B, D].

    observed: what was seen of the outputs, and the variance of its noise, [B, E].
    mask: [B, E], which of them was.
    cap: no mean and no variance changes by more than the standard deviation divided by `cap`
        (cuTAGI takes 0.1 for one observation, 2 for up to 255 at once, else 3); 0 for no bound.

    Every observation of a batch changes the layers as if it were the only one, and the changes are
    summed. For one observation of a single layer, and without a bound, this is the exact Gaussian
    conditional's mean and diagonal.
    """
    said = forward(layers, x)
    total = said[-1].variance + observed.variance
    # By how much means and variances change, over the prior variance and its square.
    mean = jnp.where(mask, (observed.mean - said[-1].mean) / total, 0.0)
    variance = jnp.where(mask, -1 / total, 0.0)
    new = []
    for i in reversed(range(len(layers))):
        w, b = layers[i].weight, layers[i].bias
        units = x if i == 0 else rectified(said[i - 1]).mean
        weight = _moved(w, units.T @ mean, jnp.square(units).T @ variance, cap)
        new.append(Layer(weight, _moved(b, mean.sum(0), variance.sum(0), cap)))
        if i:
            passes = said[i - 1].mean > 0
            mean = passes * (mean @ w.mean.T)
            variance = passes * (variance @ jnp.square(w.mean).T)
    return tuple(new[::-1])


def _moved(x: Normal, mean: Array, variance: Array, cap: Array | float) -> Normal:
    most = jnp.sqrt(x.variance) / cap
    left = x.variance + jnp.clip(jnp.square(x.variance) * variance, -most, most)
    step = jnp.clip(x.variance * mean, -most, most)
    return Normal(x.mean + step, jnp.where(left > 0, left, LEAST))
