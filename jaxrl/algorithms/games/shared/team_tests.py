"""Tests of players who trained with different numbers of teams: one with teams that all of them
know, one with teams that none of them knows.

They are the performance test and the generalization test of VGC-Bench (Angliss et al., 2025, "A
benchmark for generalizing across diverse team strategies in competitive Pokémon",
arXiv:2506.10326): all players meet each other with the smallest set of teams that one of them
trained on, which is part of all others', and with the teams at the other end of the order, beyond
the largest set.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key, Policy, struct
from jaxrl.envs.games.team_battle import POOL, team_battle
from jaxrl.evaluation import matches


@struct
class TeamTests:
    """Shares of games that each row's player won against each column's, where a draw counts as half
    a game: float32 [K, K]."""

    performance: Array
    """Shares with teams that all players trained on."""
    generalization: Array
    """Shares with teams that no player trained on."""


def team_tests(
    players: Mapping[str, Policy],
    trained: Mapping[str, int],
    *,
    key: Key,
    games: int = 256,
    order: int = 0,
    turns: int = 12,
) -> TeamTests:
    """Play both tests between all `players`, who can each play both sides of `team_battle`.

    trained: number of teams that each player trained on; 0 for scripted ones.
    games: games of each pair in each test, an even number.
    order, turns: of the environment that they trained in. Players of different orders know
        different teams.

    Raises `UserError` if nobody was trained or no team is left, and where `matches.tournament`
    does.
    """
    numbers = [trained[name] for name in players if trained[name]]
    if not numbers or max(numbers) >= POOL:
        raise UserError(
            f"The players trained on {numbers} teams; at least one must have trained, and nobody "
            f"on all {POOL}."
        )
    known = team_battle(min(numbers), False, order, turns)
    unknown = team_battle(POOL - max(numbers), True, order, turns)
    keys = jax.random.split(key)
    return TeamTests(
        *(
            matches.tournament(env, players, key=k, games=games).won
            for env, k in zip((known, unknown), keys, strict=True)
        )
    )
