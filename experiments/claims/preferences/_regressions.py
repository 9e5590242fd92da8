"""Regressions of the log-ratios of answers, each for itself, in tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

NEWTON = 8


def minimum_of_policies(expectation: Callable[[Array], Array], begin: Array, by: Array) -> Array:
    """Return the log-probabilities [A] of the policy that minimizes a function of them, the mean
    over answers `by` a policy [A], by Newton's steps from a policy near it.

    Steps are found in logits times the roots of their chances, so that rare answers do no harm.
    """
    of_logits = lambda z: expectation(jax.nn.log_softmax(z))
    root = jnp.exp(by / 2)

    def step(_, z):
        slope, curvature = jax.grad(of_logits)(z), jax.hessian(of_logits)(z)
        # All logits may be shifted alike; `root` is that direction.
        scaled = curvature / (root[:, None] * root) + root[:, None] * root
        return jax.nn.log_softmax(z - jnp.linalg.solve(scaled, slope / root) / root)

    return jax.lax.fori_loop(0, NEWTON, step, begin)


def shortfall(found: Array, least: Array | float) -> Array:
    """Return by how much something is below the least that it should be."""
    return jnp.maximum(least - found, 0)
