"""The gradient of a dense layer is that of x @ w, in whichever form it is computed."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.networks.dense import _is_transposed_faster, matmul

# Shape of x, number of outputs, and whether the gradient is computed as (g^T x)^T.
CASES = [
    ((64, 8), 2, True),  # a few outputs
    ((64, 8), 8, True),  # square, many rows
    ((8, 8), 8, False),  # square, few rows
    ((4, 32), 8, False),  # few rows, many weights
    ((64, 2), 8, False),  # a few inputs
    ((64, 8), 1, False),  # a product with a vector
    ((5, 16, 8), 2, True),  # windows [T, B, I]
    ((2, 3, 8), 8, False),
]


@pytest.mark.parametrize(("shape", "outputs", "transposed"), CASES)
def test_derivatives_are_those_of_the_plain_product(shape, outputs, transposed):
    assert _is_transposed_faster(math.prod(shape[:-1]), shape[-1], outputs) == transposed
    x = jax.random.normal(random.key(0), shape)
    w = jax.random.normal(random.key(1), (shape[-1], outputs))
    plain, ours = (
        lambda x, w, product=product: jnp.sin(product(x, w)).sum()
        for product in (lambda x, w: x @ w, matmul)
    )
    for derivative in (
        lambda f: jax.grad(f, (0, 1))(x, w),
        lambda f: jax.jvp(f, (x, w), (x[::-1], 2 * w)),
        lambda f: jax.hessian(f, 1)(x, w),
        lambda f: jax.vmap(jax.grad(f, 1), (None, 0))(x, jnp.stack([w, 2 * w])),
    ):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
            jax.jit(lambda f=derivative: f(ours))(),
            jax.jit(lambda f=derivative: f(plain))(),
        )
