"""Bayesian logistic regression by Laplace's approximation, without gradient steps."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Key, struct

NEWTON_STEPS = 8
STEP_SIZES = 0.5 ** np.arange(8.0, dtype=np.float32)


@struct
class Belief:
    """A normal belief about the weights, of features and a bias."""

    mean: Array  # [F + 1], the bias last
    precision: Array  # [F + 1, F + 1]


@dataclasses.dataclass(frozen=True)
class Logistic:
    """Log-odds that are linear in features [..., F], with a normal belief about the weights.

    width: F. deviation: standard deviation of each weight and of the bias at first, around 0.
    """

    width: int
    deviation: float = 1.0

    def init(self, key: Key, features: Array) -> Belief:
        """Return the belief before any label."""
        del key, features
        size = self.width + 1
        return Belief(jnp.zeros(size), jnp.eye(size) / self.deviation**2)

    def apply(self, belief: Belief, features: Array) -> Array:
        """Return the log-odds [...] by the mean of the weights."""
        return extend(features) @ belief.mean

    def draw(self, belief: Belief, key: Key, count: int, scale: Array | float = 1.0) -> Array:
        """Draw weights from the belief, [count, F + 1], with `scale` times its deviations."""
        root = jnp.linalg.cholesky(belief.precision)
        noise = jax.random.normal(key, (count, self.width + 1))
        # One solve for all samples; vmapped, each sample has a solve of its own.
        away = jax.scipy.linalg.solve_triangular(root.T, noise.T, lower=False).T
        return belief.mean + scale * away

    def infer(self, belief: Belief, features: Array, labels: Array, mask: Array) -> Belief:
        """Return the belief after labels: the posterior's mode and the curvature there.

        features: [..., F]. labels: [...], 1 or 0. mask: [...], 1 where there is a label, else 0.

        The belief before is the prior, so labels may come in any number of batches; what was seen
        earlier is kept by its curvature alone (Spiegelhalter and Lauritzen, 1990, "Sequential
        updating of conditional probabilities on directed graphical structures").
        """
        x = extend(features)

        def curvature(weights: Array) -> tuple[Array, Array]:
            odds = jax.nn.sigmoid(x @ weights)
            slope = jnp.einsum("...,...i->i", mask * (labels - odds), x)
            seen = jnp.einsum("...,...i,...j->ij", mask * odds * (1 - odds), x, x)
            return slope - belief.precision @ (weights - belief.mean), belief.precision + seen

        def log_posterior(weights: Array) -> Array:
            odds, away = x @ weights, weights - belief.mean
            fit = (mask * (labels * odds - jax.nn.softplus(odds))).sum()
            return fit - away @ belief.precision @ away / 2

        def step(_: int, weights: Array) -> Array:
            slope, precision = curvature(weights)
            change = jnp.linalg.solve(precision, slope)
            tried = weights + STEP_SIZES[:, None] * change  # whole steps may go back and forth
            return tried[jax.vmap(log_posterior)(tried).argmax()]

        mean = jax.lax.fori_loop(0, NEWTON_STEPS, step, belief.mean)
        return Belief(mean, curvature(mean)[1])


def extend(features: Array) -> Array:
    """Return features [..., F] with a 1 for the bias, [..., F + 1]."""
    return jnp.concatenate([features, jnp.ones_like(features[..., :1])], -1)
