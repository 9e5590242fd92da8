"""Policies over a few answers as tables, and the minimum of a loss of pairs in expectation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Key

ANSWERS = 10


class Game(NamedTuple):
    """Answers to one prompt: log-probabilities [A] by three policies, rewards [A], and how probably
    an answer is preferred to another [A, A], with cycles."""

    policy: Array
    reference: Array
    behavior: Array
    reward: Array
    preference: Array


def draw(key: Key) -> Game:
    """Draw a game."""
    keys = jax.random.split(key, 3)
    policies = jax.nn.log_softmax(jax.random.normal(keys[0], (3, ANSWERS)))
    reward = jax.random.normal(keys[1], (ANSWERS,))
    score = jax.random.normal(keys[2], (ANSWERS, ANSWERS))
    return Game(*policies, reward, jax.nn.sigmoid(2 * (score - score.T)))  # pyright: ignore[reportCallIssue]


def pairs(*values: Array) -> list[Array]:
    """Return values [A] of the first and of the second answer of every pair, each [A, A]."""
    both = (jnp.broadcast_arrays(x[:, None], x[None, :]) for x in values)
    return [side for pair in both for side in pair]


def chance(policy: Array) -> Array:
    """Return the probability [A, A] of every pair of independent answers by a policy [A]."""
    return jnp.exp(policy[:, None] + policy)


def minimum(expectation: Callable[[Array], Array]) -> Array:
    """Return the log-probabilities [A] that minimize a quadratic function of differences between
    log-probabilities, by Newton's step."""
    of_others = lambda others: expectation(jnp.concatenate([jnp.zeros(1), others]))
    begin = jnp.zeros(ANSWERS - 1)
    slope, curvature = jax.grad(of_others)(begin), jax.hessian(of_others)(begin)
    return jax.nn.log_softmax(jnp.append(0.0, -jnp.linalg.solve(curvature, slope)))


def distance(found: Array, exact: Array) -> Array:
    """Return the largest difference, relative to the largest entry of what is exact."""
    return jnp.abs(found - exact).max() / jnp.abs(exact).max()
