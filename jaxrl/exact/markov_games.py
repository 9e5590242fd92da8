"""Exact values, best responses and gaps of finite Markov games for two players.

Shapes: `H` steps, `S` states, `A` and `B` actions of the two players, who choose at the same time.

    transition [H, S, A, B, S]  probability of each successor
    reward     [2, H, S, A, B]  of each player
    initial    [S]
    policies   ([H, S, A], [H, S, B]), probability of each action of each player

Rewards may differ from player to player in any way (general sum), and policies may depend on the
step. All are pure functions of arrays, for `jit`, `vmap` and `grad`, in the precision of their
arguments. Source: Zhang et al., 2024, "Multi-Agent Reinforcement Learning from Human Feedback: Data
Coverage and Algorithmic Techniques", arXiv:2409.00717, whose gap is `nash_gap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array


class MarkovGame(NamedTuple):
    """A finite game; see above for the shapes."""

    transition: Array
    reward: Array
    initial: Array


Policies = tuple[Array, Array]


def check_game(game: MarkovGame) -> None:
    """Raise `UserError` for arrays whose shapes do not match."""
    steps, states, first, second = game.transition.shape[:4]
    expected = (2, steps, states, first, second), (*game.transition.shape[:4], states), (states,)
    found = game.reward.shape, game.transition.shape, game.initial.shape
    if found != expected:
        raise UserError(
            f"A Markov game has rewards, transitions and an initial distribution of "
            f"shapes {found}; by the first axes of the transitions they must be {expected}."
        )


def action_values(
    game: MarkovGame, step: Array | int, player: Array | int, following: Array
) -> Array:
    """Return a player's values [S, A, B] of joint actions, by its values [S] at the next step."""
    return game.reward[player, step] + precise.matmul(game.transition[step], following)


def values(game: MarkovGame, policies: Policies) -> Array:
    """Return the expected return of each player, [2]."""
    check_game(game)

    def of(player: int) -> Array:
        def back(following: Array, step: Array) -> tuple[Array, None]:
            worth = action_values(game, step, player, following)
            first, second = (x[step] for x in policies)
            return precise.einsum("sab,sa,sb->s", worth, first, second), None

        return _backward(game, back)

    return jnp.stack([of(0), of(1)])


def best_response(game: MarkovGame, policies: Policies, player: int) -> Array:
    """Return the most that a player can get against the other's policy, a scalar; its own policy is
    not read."""
    check_game(game)

    def back(following: Array, step: Array) -> tuple[Array, None]:
        worth = action_values(game, step, player, following)
        if player:
            worth = worth.swapaxes(1, 2)  # own actions first
        return precise.einsum("sab,sb->sa", worth, policies[1 - player][step]).max(-1), None

    return _backward(game, back)


def nash_gap(game: MarkovGame, policies: Policies) -> Array:
    """Return the sum of what the players can gain by best responses, 0 at a Nash equilibrium and
    nowhere else."""
    best = jnp.stack([best_response(game, policies, player) for player in range(2)])
    return (best - values(game, policies)).sum()


def _backward(game: MarkovGame, back: Callable[[Array, Array], tuple[Array, None]]) -> Array:
    """Return the expected value of the first step, from zeros after the last."""
    steps = jnp.arange(len(game.transition))
    last = jnp.zeros(game.initial.shape, game.reward.dtype)
    first, _ = jax.lax.scan(back, last, steps, reverse=True)
    return precise.matmul(game.initial, first)
