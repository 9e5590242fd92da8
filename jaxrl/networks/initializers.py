"""Initializers of weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl.core import errors


def initializer(name: str, scale: float):
    """Return the initializer called `name`: `orthogonal` times `scale`, or `lecun` or `torch`,
    which ignore `scale`.

    `lecun` is normal with variance 1 / inputs (LeCun et al., 1998, "Efficient BackProp"). With it
    PPO learned CartPole faster at first and as well in the end (README). `torch` is uniform between
    -+1 / sqrt(inputs), that is with a third of that variance; `dense` layers then draw their biases
    likewise, as PyTorch's linear layers do. Raises `UserError` for other names.
    """
    if name not in INITIALIZERS:
        raise errors.unknown("initializer", name, INITIALIZERS)
    return INITIALIZERS[name](scale)


def orthogonal(scale: float = 1.0):
    """Make an initializer of orthogonal weights (Saxe, McClelland & Ganguli 2014, "Exact solutions
    to the nonlinear dynamics of learning in deep linear neural networks").

    The last axis is the output, and the axes before it are flattened into the input. Along the
    smaller of the two the weights are orthonormal vectors with Haar distribution, times `scale`.

    The distribution is that of `jax.nn.initializers.orthogonal`, but the vectors come from
    Gram-Schmidt in a loop instead of `jnp.linalg.qr`: LAPACK's QR, batched by vmap in a jitted
    training program, hung on the CPU.

    Returns:
        `init(key, shape, dtype=float32)` -> [*shape], which raises UserError for fewer than two
        axes.
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
        if len(shape) < 2:
            raise errors.UserError(
                f"Orthogonal weights need at least two axes, not the shape {tuple(shape)}."
            )
        rows, columns = math.prod(shape[:-1]), shape[-1]
        if rows == 0 or columns == 0:
            return jnp.zeros(shape, dtype)
        vectors = _orthonormal_rows(key, min(rows, columns), max(rows, columns))
        matrix = vectors if rows <= columns else vectors.T
        return (scale * matrix).reshape(shape).astype(dtype)

    return init


def orthogonal_by_qr(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    """Draw what `jax.nn.initializers.orthogonal()` draws, one vmapped run after another.

    Recorded runs with a memory began with these weights; `orthogonal` draws others, without LAPACK.
    QR of a batch never returned in jitted programs on the CPU (jaxlib 0.10.2).
    """
    draw = lambda key: jax.nn.initializers.orthogonal()(key, shape, dtype)
    return jax.custom_batching.sequential_vmap(draw)(key)


class FanInUniform:
    """Initializer of weights and of biases: uniform between -+1 / sqrt(inputs), as PyTorch's linear
    layers begin."""

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
        """Draw weights [*inputs, outputs]."""
        return self.uniform(key, shape, math.prod(shape[:-1]), dtype)

    def biases_of(self, inputs: int):
        """Return the initializer of the biases of a layer with so many `inputs`."""
        return lambda key, shape, dtype=jnp.float32: self.uniform(key, shape, inputs, dtype)

    @staticmethod
    def uniform(key: jax.Array, shape: tuple[int, ...], inputs: int, dtype) -> jax.Array:
        bound = inputs**-0.5
        return jax.random.uniform(key, shape, dtype, -bound, bound)


INITIALIZERS: dict[str, Callable[[float], Any]] = {
    "lecun": lambda scale: jax.nn.initializers.lecun_normal(),
    "orthogonal": orthogonal,
    "torch": lambda scale: FanInUniform(),
}


@functools.partial(jax.jit, static_argnums=(1, 2))
def _orthonormal_rows(key: jax.Array, count: int, size: int) -> jax.Array:
    """Draw `count` orthonormal vectors of `size` >= `count` with Haar distribution: float32
    [count, size].

    They are Haar distributed since Gram-Schmidt on Gaussian rows gives the Q of their QR
    decomposition with a positive diagonal of R (Mezzadri 2007, "How to generate random matrices
    from the classical compact groups", section 5).

    Steps 2i and 2i + 1 both subtract from row i its projections on the rows before it; twice is
    enough for orthogonality up to rounding (Giraud, Langou & Rozloznik 2005, "twice is enough").
    The mask excludes rows from i on, so that every step has the same shapes. Both keep the loop
    body small, and thereby its compile time.
    """
    gaussian = jax.random.normal(key, (count, size), jnp.float32)

    def orthogonalize(step, rows):
        i = step // 2
        along = jnp.where(jnp.arange(count) < i, rows @ rows[i], 0)
        row = rows[i] - along @ rows
        return rows.at[i].set(row * lax.rsqrt(row @ row))

    return lax.fori_loop(0, 2 * count, orthogonalize, gaussian)
