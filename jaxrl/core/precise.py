"""Products in full precision: on accelerators others keep about ten bits of each factor."""

from __future__ import annotations

import functools

import jax.numpy as jnp

matmul = functools.partial(jnp.matmul, precision="highest")
einsum = functools.partial(jnp.einsum, precision="highest")
