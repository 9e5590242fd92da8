"""Level-k reasoning: respond to rivals who respond to rivals ... who follow a simple rule.

A player of level 0 follows a rule on the history; one of level k predicts that its rivals are of
level k - 1, by reasoning for them, and responds. `reason` is this recursion around any rule and any
response; `contest` is the game of guessing a share of the average, round after round.

Source: Zhang et al., 2024, "K-level reasoning with large language models" (arXiv:2402.01521), where
a language model plays all of these parts. Here the rule and the response are given functions:
the recursion is the same, what a language model knows is not. Levels: Nagel, 1995, "Unraveling in
guessing games: an experimental study".
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

Rule = Callable[[Array], Array]  # history [T, N] -> what a player of level 0 does
Response = Callable[[Array], Array]  # a prediction of each rival's action -> the response


def reason(rule: Rule, respond: Response, history: Array, level: int) -> Array:
    """Return the action of a player of `level`, who sees `history`."""
    action = rule(history)
    for _ in range(level):
        action = respond(action)
    return action


def repeat_average(history: Array) -> Array:
    """Return the last round's average guess: the rule of level 0, who expects no change."""
    return history[-1].mean()


def guess_response(share: Array | float, players: int) -> Response:
    """Return the response to rivals who all guess alike, in the game of guessing a share of the
    average.

    The own guess counts in the average: g = share ((players - 1) m + g) / players.
    """
    return lambda rival: share * (players - 1) * rival / (players - share)


def contest(history: Array, share: Array | float, levels: Array, most: int, rounds: int) -> Array:
    """Return the guesses [rounds, N] of players of the given levels [N], after a first round.

    history: [1, N], the guesses of the first round. most: the highest level, static.
    """
    players = len(levels)
    respond = guess_response(share, players)

    def step(last, _):
        guesses = jnp.stack([
            reason(repeat_average, respond, last[None], level) for level in range(most + 1)
        ])  # fmt: skip
        now = guesses[levels]
        return now, now

    return jax.lax.scan(step, history[-1], None, rounds)[1]


def winners(guesses: Array, share: Array | float) -> Array:
    """Return each player's share [..., N] of the prize for the guess nearest to the share of the
    average; those at the same distance divide it."""
    distance = jnp.abs(guesses - share * guesses.mean(-1, keepdims=True))
    nearest = distance <= distance.min(-1, keepdims=True) + 1e-12
    return nearest / nearest.sum(-1, keepdims=True)
