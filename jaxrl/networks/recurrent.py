"""A recurrent memory, stepped while acting and unrolled over windows while learning."""

from __future__ import annotations

import functools
import operator

import flax.linen as nn
import jax.numpy as jnp
from jax import lax

from jaxrl.core import trees
from jaxrl.core.types import Array
from jaxrl.networks.compute import product
from jaxrl.networks.initializers import orthogonal_by_qr


def _dot_general(x, w, dimension_numbers, precision=None, preferred_element_type=None):
    """Multiply with the signature that flax expects, in bfloat16 if networks compute so."""
    return product(lambda x, w: lax.dot_general(x, w, dimension_numbers), x, w)


class Cell(nn.Module):
    """A step of a gated recurrent unit, with the parameters of `flax.linen.GRUCell`.

    Its products alone are in bfloat16 if networks compute so: a memory that was rounded at each
    step would forget whatever changes slowly.
    """

    width: int

    @nn.compact
    def __call__(self, memory: Array, x: Array) -> Array:
        """Return the new memory [B, width], from the old one and x [B, D]."""

        def gate(name: str, bias: bool = False) -> tuple[Array, Array]:
            make = functools.partial(nn.Dense, self.width, dot_general=_dot_general)
            from_memory = make(use_bias=bias, kernel_init=orthogonal_by_qr, name=f"h{name}")
            return make(name=f"i{name}")(x), from_memory(memory)

        reset = nn.sigmoid(operator.add(*gate("r")))
        update = nn.sigmoid(operator.add(*gate("z")))
        new, old = gate("n", bias=True)
        return (1 - update) * jnp.tanh(new + reset * old) + update * memory


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al., 2014); its memory [B, width] is zero at first steps."""

    width: int

    def setup(self):
        self.cell = Cell(self.width)

    def __call__(self, x: Array, memory: Array) -> tuple[Array, Array]:
        """Take one step: x [B, D], memory [B, width] -> features [B, width], memory."""
        memory = self.cell(memory, x)
        return memory, memory

    def read(self, x: Array, memory: Array) -> tuple[Array, Array]:
        """Read the beginnings of episodes: x [T, B, D] from their first step on, memory [B, width]
        -> features [T, B, width], and the memory after the last step."""
        x, memory = self.unroll(x, jnp.zeros(x.shape[:2], bool), memory)
        return x, memory[-1]

    def unroll(self, x: Array, first: Array, memory: Array) -> tuple[Array, Array]:
        """Unroll over a window: x [T, B, D], first [T, B], memory [B, width] before its first step.

        Returns features and the memory after each step, [T, B, width].
        """

        def step(cell, memory, inputs):
            x, first = inputs
            memory = trees.where(first, jnp.zeros_like(memory), memory)
            memory = cell(memory, x)
            return memory, memory

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        _, memories = scan(self.cell, memory, (x, first))
        return memories, memories

    def initial(self, n: int) -> Array:
        """Return the memory [n, width] before an episode's first step."""
        return jnp.zeros((n, self.width))
