"""Networks with independent normal weights, inferred in closed form, without gradients.

Tractable approximate Gaussian inference (Goulet, Nguyen and Amiri, 2021, "Tractable approximate
Gaussian inference for Bayesian neural networks", arXiv:2004.09281; the authors' code, cuTAGI). It
assumes that the units of a layer are independent normals, that a product of weight and unit is
normal with its exact moments, and that a rectifier is linear around the mean of its input.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Key, TimeStep, struct
from jaxrl.networks import encoders

MIN_VARIANCE = 1e-5  # of a weight whose update would leave no positive variance, as in cuTAGI


@struct
class Normal:
    """Means and variances of independent normals, with the same shape."""

    mean: Array
    variance: Array


@struct
class Layer:
    """Beliefs about the weights of one layer."""

    weight: Normal  # [D, E]
    bias: Normal  # [E]


Layers = tuple[Layer, ...]


@dataclasses.dataclass(frozen=True)
class Tagi:
    """A network with rectified layers of `widths`: time step [...] -> normals [..., outputs].

    gain: scale of the prior standard deviation of weights and biases, gain / sqrt(D) for a layer
        with D inputs. Prior means are drawn with a standard deviation of 1 / sqrt(D).
    """

    observation_space: Space
    outputs: int
    widths: tuple[int, ...] = (64, 64)
    gain: float = 1.0

    def init(self, key: Key, timestep: TimeStep) -> Layers:
        """Draw the prior of all layers."""
        sizes = [self._inputs(timestep).shape[-1], *self.widths, self.outputs]
        return tuple(
            prior(jax.random.fold_in(key, i), sizes[i], sizes[i + 1], self.gain)
            for i in range(len(sizes) - 1)
        )

    def apply(self, layers: Layers, timestep: TimeStep) -> Normal:
        """Compute the outputs [..., outputs] at `timestep` [...]."""
        return forward(layers, self._inputs(timestep))[-1]

    def infer(
        self,
        layers: Layers,
        timestep: TimeStep,
        observed: Normal,
        mask: Array,
        cap: Array | float = 0.0,
    ) -> Layers:
        """Condition the layers on outputs observed at `timestep`; see the function `infer`."""
        return infer(layers, self._inputs(timestep), observed, mask, cap)

    def _inputs(self, timestep: TimeStep) -> Array:
        return encoders.features(self.observation_space, timestep)


def prior(key: Key, inputs: int, outputs: int, gain: float = 1.0) -> Layer:
    """Draw the prior of a layer, which has random means and equal variances."""
    scale = inputs**-0.5

    def normal(key: Key, shape: tuple[int, ...]) -> Normal:
        mean = scale * jax.random.normal(key, shape)
        return Normal(mean, jnp.full(shape, (gain * scale) ** 2, mean.dtype))

    weight, bias = jax.random.split(key)
    return Layer(normal(weight, (inputs, outputs)), normal(bias, (outputs,)))


def forward(layers: Layers, x: Array) -> list[Normal]:
    """Compute the outputs of every layer for `x` [B, D]: normals [B, E], before the rectifier that
    follows each layer but the last."""
    units, outputs = Normal(x, jnp.zeros_like(x)), []
    for layer in layers:
        outputs.append(affine(layer, units))
        units = rectify(outputs[-1])
    return outputs


def affine(layer: Layer, x: Normal) -> Normal:
    """Compute the mean and variance of W x + b, exact for independent weights and units."""
    w, b = layer.weight, layer.bias
    by_units = x.variance @ (jnp.square(w.mean) + w.variance)
    variance = by_units + jnp.square(x.mean) @ w.variance + b.variance
    return Normal(x.mean @ w.mean + b.mean, variance)


def rectify(x: Normal) -> Normal:
    """Compute max(x, 0), linearized around the mean."""
    passes = (x.mean > 0).astype(x.mean.dtype)
    return Normal(passes * x.mean, passes * x.variance)


def infer(
    layers: Layers, x: Array, observed: Normal, mask: Array, cap: Array | float = 0.0
) -> Layers:
    """Condition the layers on outputs observed for `x` [B, D].

    observed: the observed outputs and the variance of their noise, [B, E].
    mask: bool [B, E], which outputs were observed.
    cap: no mean and no variance changes by more than the standard deviation divided by `cap`
        (cuTAGI uses 0.1 for one observation, 2 for up to 255 at once, else 3); 0 for no bound.

    Each observation of a batch changes the layers as if it were the only one, and the changes are
    summed. For one observation of a single layer, without a bound, the result is the mean and
    diagonal of the exact Gaussian conditional.
    """
    outputs = forward(layers, x)
    total = outputs[-1].variance + observed.variance
    # Changes of means and variances, divided by the prior variance and its square.
    mean = jnp.where(mask, (observed.mean - outputs[-1].mean) / total, 0.0)
    variance = jnp.where(mask, -1 / total, 0.0)
    new = []
    for i in reversed(range(len(layers))):
        w, b = layers[i].weight, layers[i].bias
        units = x if i == 0 else rectify(outputs[i - 1]).mean
        weight = _apply_change(w, units.T @ mean, jnp.square(units).T @ variance, cap)
        new.append(Layer(weight, _apply_change(b, mean.sum(0), variance.sum(0), cap)))
        if i:
            passes = outputs[i - 1].mean > 0
            mean = passes * (mean @ w.mean.T)
            variance = passes * (variance @ jnp.square(w.mean).T)
    return tuple(new[::-1])


def _apply_change(x: Normal, mean: Array, variance: Array, cap: Array | float) -> Normal:
    """Change mean and variance, given as in `infer`, by at most the deviation over `cap`."""
    most = jnp.sqrt(x.variance) / cap
    left = x.variance + jnp.clip(jnp.square(x.variance) * variance, -most, most)
    step = jnp.clip(x.variance * mean, -most, most)
    return Normal(x.mean + step, jnp.where(left > 0, left, MIN_VARIANCE))
