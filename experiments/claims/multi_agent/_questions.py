"""Questions whose answers are described by features, and policies that are linear in them.

A policy that learns about some questions so learns about others too, and how often it is right is a
sum over all answers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.types import Array, Key

ANSWERS, FEATURES, NOISE = 8, 16, 0.5


class Questions(NamedTuple):
    """Features [X, A, F] of answers, and the right answers, int [X]."""

    features: Array
    right: Array

    def log_prob(self, weights: Array) -> Array:
        """Return the log-probabilities [X, A] of all answers."""
        return jax.nn.log_softmax(self.features @ weights)

    def accuracy(self, weights: Array) -> Array:
        """Return how probable the right answers are, [X]."""
        table = self.log_prob(weights)
        return jnp.exp(jnp.take_along_axis(table, self.right[:, None], 1)[:, 0])


def draw_questions(key: Key, *numbers: int) -> tuple[tuple[Questions, ...], Array]:
    """Draw sets of questions of these numbers, and the weights [F] by which answers are right."""
    keys = jax.random.split(key, 3)
    shape = sum(numbers), ANSWERS
    features = jax.random.normal(keys[0], (*shape, FEATURES))
    ideal = jax.random.normal(keys[1], (FEATURES,)) / FEATURES**0.5
    right = jnp.argmax(features @ ideal + NOISE * jax.random.normal(keys[2], shape), -1)
    ends = [sum(numbers[: i + 1]) for i in range(len(numbers))]
    begins = [0, *ends[:-1]]
    sets = [Questions(features[a:b], right[a:b]) for a, b in zip(begins, ends, strict=True)]
    return tuple(sets), ideal


def draw_policy(key: Key, ideal: Array, skill: float) -> Array:
    """Draw the weights [F] of a policy that knows a little."""
    return skill * (ideal + jax.random.normal(key, ideal.shape) / FEATURES**0.5)


def surrogate(now: Array, old: Array, advantage: Array, clip: Array | float) -> Array:
    """Return the mean clipped surrogate of choices."""
    return losses.clipped_surrogate(now, old, advantage, clip).mean()
