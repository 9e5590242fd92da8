"""Random games, and iterates of learning dynamics in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Key, Tree

Step = Callable[[Any, Tree, Array], Tree]  # (game, iterate, number of the step from 1) -> iterate


def race(step: Step, game: Any, begin: Tree, steps: int) -> Tree:
    """Return the iterates after 1, 2, ..., `steps` steps, along a new first axis."""

    def one(iterate, t):
        iterate = step(game, iterate, t)
        return iterate, iterate

    return jax.lax.scan(one, begin, jnp.arange(1, steps + 1))[1]


def bilinear(key: Key, size: int, low: float = 0.3, high: float = 1.0) -> Array:
    """Draw D [size, size] of min_x max_y x'Dy with singular values within low and high.

    x and y are unbounded, and the only saddle is at 0.
    """
    keys = jax.random.split(key, 3)
    left, right = (jnp.linalg.qr(jax.random.normal(k, (size, size), float))[0] for k in keys[:2])
    values = jax.random.uniform(keys[2], (size,), float, low, high)
    return left @ (values[:, None] * right)


def cyclic(key: Key, actions: int = 3) -> Array:
    """Draw the payoffs [2, A, A] of a zero-sum game in which each action beats the one before it.

    With three actions, and any stakes, both players mix all of them at the equilibrium.
    """
    stakes = jax.random.uniform(key, (actions,), float, 0.5, 1.5)
    wins = jnp.diag(stakes)[:, jnp.roll(jnp.arange(actions), -1)]
    return jnp.stack([wins - wins.T, wins.T - wins])


def polymatrix(key: Key, players: int, actions: int) -> Array:
    """Draw the payoffs [N, A, ..., A] of a zero-sum game of pairs.

    Each pair of players plays a zero-sum matrix game, and a player's payoff is the sum over its
    pairs. Losses' gradients are monotone, and two players play one random matrix game.
    """
    total = jnp.zeros((players, *[actions] * players))
    for i in range(players):
        for j in range(i + 1, players):
            key, draw = jax.random.split(key)
            pair = jax.random.uniform(draw, (actions, actions), float, -1, 1)
            shape = [actions if k in (i, j) else 1 for k in range(players)]
            total = total.at[i].add(pair.reshape(shape)).at[j].add(-pair.reshape(shape))
    return total
