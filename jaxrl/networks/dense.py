"""Dense layers with a fast weight gradient on CPUs."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxrl.core.types import Array
from jaxrl.networks.compute import product
from jaxrl.networks.initializers import FanInUniform


@jax.custom_jvp
def matmul(x: Array, w: Array) -> Array:
    """Multiply x [..., I] @ w [I, O] -> [..., O], with derivatives of any order and mode."""
    return x @ w


@matmul.defjvp
def _matmul_jvp(primals, tangents):
    """Compute the weight gradient as x^T g, or as (g^T x)^T if `_is_transposed_faster`.

    The barriers keep XLA from turning the second form into the first: after this is transposed by
    differentiation, the outer one lies after g^T, the inner one before the last transposition.
    """
    (x, w), (dx, dw) = primals, tangents
    along = matmul(dx, w)
    if not _is_transposed_faster(math.prod(x.shape[:-1]), *w.shape):
        return matmul(x, w), along + x @ dw
    stay = lax.optimization_barrier
    # Without a reshape to rows: merging an axis that is split over devices behind another one would
    # gather it on each of them.
    from_weights = stay(lax.dot_general(stay(dw.T), x, (((1,), (x.ndim - 1,)), ((), ()))))
    return matmul(x, w), along + jnp.moveaxis(from_weights, 0, -1)


def _is_transposed_faster(rows: int, inputs: int, outputs: int) -> bool:
    """Return whether (g^T x)^T, with g^T laid out in memory, is faster than x^T g on a CPU.

    x^T g lays out x^T instead, [inputs, rows], and is slow for few outputs: four times as slow for
    two of them (a single output is a product with a vector, which is not slow). (g^T x)^T copies
    the gradient, [inputs, outputs], twice, and takes twice as long with few rows and many weights.
    If both forms copy the same amount, as with square weights, (g^T x)^T is up to a fifth faster
    for many rows. Measured with jax 0.10.2 for 32 to 2,048 rows and layers 1 to 2,048 wide, with
    and without vmap.
    """
    if outputs == 1:
        return False
    return rows * (inputs - outputs) >= inputs * outputs or rows >= 4 * inputs >= 4 * outputs


def _dot_general(x, w, dimension_numbers, precision=None, preferred_element_type=None):
    """Call `matmul` with the signature that flax expects."""
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ()))
    return matmul(x, w)


def hidden_matmul(x: Array, w: Array) -> Array:
    """Multiply as `matmul` does, in bfloat16 if networks compute so (`compute.product`)."""
    return product(matmul, x, w)


def _hidden_dot_general(x, w, dimension_numbers, precision=None, preferred_element_type=None):
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ()))
    return hidden_matmul(x, w)


class FanInDense(nn.Dense):
    """A dense layer whose biases begin by its number of inputs too."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        init: Any = self.kernel_init
        multiply: Any = self.dot_general
        kernel = self.param("kernel", init, (inputs.shape[-1], self.features))
        bias = self.param("bias", init.biases_of(inputs.shape[-1]), (self.features,))
        contracted = (((inputs.ndim - 1,), (0,)), ((), ()))
        return multiply(inputs, kernel, contracted) + bias


def _layer(width: int, kernel_init: Any, dot_general: Any, name: str | None) -> nn.Dense:
    kind = FanInDense if isinstance(kernel_init, FanInUniform) else nn.Dense
    return kind(width, kernel_init=kernel_init, dot_general=dot_general, name=name)


def dense(
    width: int, kernel_init: nn.initializers.Initializer, name: str | None = None
) -> nn.Dense:
    """Make a flax dense layer [..., I] -> [..., width] that multiplies with `matmul`, as the last
    one of a network should."""
    return _layer(width, kernel_init, _dot_general, name)


def hidden_dense(width: int, kernel_init: nn.initializers.Initializer) -> nn.Dense:
    """Make a flax dense layer [..., I] -> [..., width] that multiplies with `hidden_matmul`."""
    return _layer(width, kernel_init, _hidden_dot_general, None)
