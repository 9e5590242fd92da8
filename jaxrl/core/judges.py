"""Comparisons of episodes by the judge of their environment."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Judge, Tree


def judge_of(env: Environment) -> Judge:
    """Return the judge of an environment. Raises `UserError` if it has none."""
    if env.judge is None:
        raise UserError(
            f"'{env.name}' has no judge that could prefer one answer to another; give it one "
            "(Environment.judge), or use an environment that has one, such as 'judged_words'."
        )
    return env.judge


def win_probabilities(judge: Judge, judged: Tree, size: int) -> Array:
    """Return how probably each answer of a group is preferred to each other, [P, G, G].

    judged: of the answers, leaves [P * G, ...]. size: answers of a group (G).
    """

    def both(x: Array, axis: int) -> Array:
        x = jnp.expand_dims(x.reshape(-1, size, *x.shape[1:]), axis)
        return jnp.broadcast_to(x, (len(x), size, size, *x.shape[3:]))

    first, second = (jax.tree.map(functools.partial(both, axis=axis), judged) for axis in (2, 1))
    return judge(first, second)
