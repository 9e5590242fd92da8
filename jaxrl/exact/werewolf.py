"""Exact values of play in the environment `werewolf`, by enumeration of all its games."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.language.werewolf import (
    CLAIMS,
    PLAYERS,
    SILENT,
    Deal,
    Params,
    is_won,
    result,
    speech_options,
    step_labels,
    vote_options,
)

CARDS = 2 + 2 * PLAYERS  # what A can know: wolf, villager, or as the seer one of eight results
VOTES = np.array([1, 2, 3, PLAYERS])  # of A: for B, C, D, or nobody


class Day(NamedTuple):
    """All days of A, by what A knows: card Q, claims of B and C, its own claim, and that of D.

    chance: [Q, 9, 9, 9, 9], joint probability of all but A's own claim.
    won, speech, vote: the same with A's vote [Q, 9, 9, 9, 9, 4], times the expected reward, and
        times the expected labels of A's speech and of its vote. Votes are for B, C, D, nobody.
    """

    chance: np.ndarray
    won: np.ndarray
    speech: np.ndarray
    vote: np.ndarray


class Play(NamedTuple):
    """Behavior of A: chances of its claims, [Q, 9, 9, 9], and of its votes, [Q, 9, 9, 9, 9, 4]."""

    claim: np.ndarray
    vote: np.ndarray


def card_of(deal: Deal) -> jax.Array:
    """Return what A knows before the day, 0 .. Q - 1: 0 the wolf, 1 a villager, else 2 + `result`
    as the seer."""
    seen = jnp.where(deal.seer == 0, 2 + result(deal), 1)
    return jnp.where(deal.wolf == 0, 0, seen)


def enumerate_days(params: Params) -> Day:
    """Enumerate all deals, speeches and votes."""
    rows = [
        (wolf, seer, checked, (False, *kinds))
        for wolf, seer, checked in itertools.product(range(PLAYERS), repeat=3)
        if wolf != seer and checked != seer
        for kinds in itertools.product((False, True), repeat=PLAYERS - 1)
    ]
    deals = Deal(*(jnp.asarray(np.array(x)) for x in zip(*rows, strict=True)))
    bold = float(params.bold)
    kinds = np.asarray(deals.bold)[:, 1:]
    weight = np.where(kinds, bold, 1 - bold).prod(1) / (len(rows) / 2 ** (PLAYERS - 1))
    shares = lambda options: options / options.sum(-1, keepdims=True)
    speeches = jax.jit(
        jax.vmap(lambda deal, player, claims: shares(speech_options(deal, player, claims)),
                 in_axes=(0, None, 0)),
        static_argnums=1,
    )  # fmt: skip
    # One row for each history: which deal, what was said, and how likely it is.
    which, claims = np.arange(len(rows)), np.full((len(rows), PLAYERS), SILENT)
    for player in (1, 2, 0, 3):
        deal = jax.tree.map(lambda x: x[which], deals)  # noqa: B023
        chance = np.ones((len(which), CLAIMS))
        if player:
            chance = np.asarray(speeches(deal, player, jnp.asarray(claims)), np.float64)
        row, said = np.nonzero(chance)
        which, claims = which[row], claims[row]
        weight = weight[row] * chance[row, said]
        claims[:, player] = said
    deal = jax.tree.map(lambda x: x[which], deals)
    cast = np.array(list(itertools.product(range(PLAYERS), repeat=PLAYERS - 1)))  # of B, C, D

    def judge(deal: Deal, claims: jax.Array) -> jax.Array:
        """Return the expected reward and labels for each of A's votes, [4, 3]."""
        options = jnp.stack([shares(vote_options(deal, p, claims)) for p in range(1, PLAYERS)])
        chance = options[jnp.arange(PLAYERS - 1), cast].prod(-1)

        def one(own: jax.Array, others: jax.Array) -> jax.Array:
            votes = jnp.concatenate([own[None], others])
            speech, vote = step_labels(deal, claims, votes)
            return jnp.stack([is_won(deal, votes), speech[0], vote[0]])

        each = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(jnp.asarray(VOTES), jnp.asarray(cast))
        return (chance[:, None] * each).sum(1)

    judged = np.asarray(jax.jit(jax.vmap(judge))(deal, jnp.asarray(claims)), np.float64)
    card = np.asarray(jax.vmap(card_of)(deal))
    place = (card, claims[:, 1], claims[:, 2], claims[:, 0], claims[:, 3])
    size = (CARDS, *(CLAIMS,) * PLAYERS)
    chance = np.zeros(size)
    np.add.at(chance, place, weight)
    sums = []
    for number in range(3):
        total = np.zeros((*size, len(VOTES)))
        np.add.at(total, place, weight[:, None] * judged[..., number])
        sums.append(total)
    return Day(chance, *sums)


def legal_claims() -> np.ndarray:
    """Return which claims A may make, bool [9]: none about itself."""
    return ~np.isin(np.arange(CLAIMS), (0, PLAYERS))


def random_play() -> Play:
    """Return uniform play."""
    claim = np.broadcast_to(legal_claims() / legal_claims().sum(), (CARDS, *(CLAIMS,) * 3))
    return Play(claim, np.full((CARDS, *(CLAIMS,) * PLAYERS, len(VOTES)), 1 / len(VOTES)))


def value(days: Day, play: Play) -> float:
    """Return the expected reward of A."""
    return float((days.won * play.claim[..., None, None] * play.vote).sum())


def best_play(days: Day) -> Play:
    """Return A's best play against the scripted players."""
    return _greedy(days.won, days.won)


def play_by_labels(days: Day) -> Play:
    """Return the play that has the best labels: votes whose expected label is best, and claims
    whose expected label is best with these votes."""
    return _greedy(days.speech, days.vote)


def _greedy(speech: np.ndarray, vote: np.ndarray) -> Play:
    """Return greedy play: of votes by `vote`, then of claims by `speech`, [Q, 9, 9, 9, 9, 4]."""
    votes = np.eye(len(VOTES))[vote.argmax(-1)]
    worth = (speech * votes).sum((-1, -2))
    claim = np.eye(CLAIMS)[np.where(legal_claims(), worth, -np.inf).argmax(-1)]
    return Play(claim, votes)
