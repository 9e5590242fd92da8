"""Regressions of log-ratios of answers, in tables, and of preferences, and shortfalls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.core.types import Array

NEWTON = 8
RIDGES, DESCENTS = np.array([10.0, 3.0, 1.0, 0.3, 0.1, 0.03]), 40


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


def as_float64(errors: Mapping[str, Array]) -> dict[str, Any]:
    """Return errors of what was computed in float32 in float64, as exact claims give them."""
    return {name: np.float64(error) for name, error in errors.items()}


def fit_linear(pairs: Array, first: Array) -> Array:
    """Return linear weights [R, F] for what is read of pairs [N, 2, F], by each of the ridges."""
    difference = pairs[:, 0] - pairs[:, 1]
    difference = jnp.where(first[:, None], difference, -difference)
    most = difference.T @ difference / 4  # an upper bound of the curvature

    def ridge(w, weight):
        inverse = jnp.linalg.inv(most + 2 * weight * jnp.eye(len(w)))

        def step(_, w):
            slope = jax.grad(lambda x: losses.bradley_terry(x, 0 * x).sum())(difference @ w)
            return w - inverse @ (difference.T @ slope + 2 * weight * w)

        w = jax.lax.fori_loop(0, DESCENTS, step, w)
        return w, w

    return jax.lax.scan(ridge, jnp.zeros(pairs.shape[-1]), jnp.asarray(RIDGES))[1]


def prefer_other(bradley_terry: Callable[..., Array]) -> Callable[..., Array]:
    """Prefer the other answer."""
    return lambda chosen, rejected, *given: bradley_terry(rejected, chosen, *given)
