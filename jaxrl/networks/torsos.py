"""Feed-forward torsos."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core.errors import unknown
from jaxrl.core.types import Array
from jaxrl.networks.dense import dense
from jaxrl.networks.initialisers import initialiser

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


class MLP(nn.Module):
    """Dense layers of the given widths, each followed by the activation: [..., D] -> [..., H]."""

    widths: tuple[int, ...]
    activation: str = "tanh"
    initialiser: str = "lecun"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in self.widths:
            x = activation(self.activation)(
                dense(width, initialiser(self.initialiser, math.sqrt(2)))(x)
            )
        return x
