"""A recurrent memory, stepped while acting and unrolled over windows while learning."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.types import Array


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al., 2014); its memory [B, width] is zero at first steps."""

    width: int

    def setup(self):
        self.cell = nn.GRUCell(self.width)

    def __call__(self, x: Array, memory: Array) -> tuple[Array, Array]:
        """Take one step: x [B, D], memory [B, width] -> features [B, width], memory."""
        memory, features = self.cell(memory, x)
        return features, memory

    def unroll(self, x: Array, first: Array, memory: Array) -> tuple[Array, Array]:
        """Unroll over a window: x [T, B, D], first [T, B], memory [B, width] before its first step.

        Returns features and the memory after each step, [T, B, width].
        """

        def step(cell, memory, inputs):
            x, first = inputs
            memory = trees.where(first, jnp.zeros_like(memory), memory)
            memory, features = cell(memory, x)
            return memory, (features, memory)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        _, (features, memories) = scan(self.cell, memory, (x, first))
        return features, memories

    def initial(self, n: int) -> Array:
        """Return the memory [n, width] before an episode's first step."""
        return jnp.zeros((n, self.width))
