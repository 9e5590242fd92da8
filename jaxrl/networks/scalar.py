"""A number of a vector, such as a value or the log-odds of a success."""

from __future__ import annotations

import flax.linen as nn

from jaxrl.core.types import Array
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


class ScalarMLP(nn.Module):
    """Hidden layers and one linear output: vectors [..., D] -> [...]."""

    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = MLP(self.widths, self.activation, self.initializer)(x)
        return dense(1, initializer(self.initializer, 1.0))(x)[..., 0]
