"""Regressions of the log-ratios of answers, each for itself, in tables."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

NEWTON = 6


def minimum_of_policies(expectation: Callable[[Array], Array], begin: Array) -> Array:
    """Return the log-probabilities [A] of the policy that minimizes a function of them, by Newton's
    steps from a policy near it."""
    policy = lambda others: jax.nn.log_softmax(jnp.append(others, 0.0))
    of_others = lambda others: expectation(policy(others))

    def step(_, others):
        slope, curvature = jax.grad(of_others)(others), jax.hessian(of_others)(others)
        return others - jnp.linalg.solve(curvature, slope)

    return policy(jax.lax.fori_loop(0, NEWTON, step, begin[:-1] - begin[-1]))


def shortfall(found: Array, least: Array | float) -> Array:
    """Return by how much something is below the least that it should be."""
    return jnp.maximum(least - found, 0)
