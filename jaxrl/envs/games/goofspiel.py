"""Goofspiel: bid cards for prizes, all players at once, without seeing the others' bids.

Each player holds cards 1 to K, and so does the deck of prizes. In every round a prize is turned up,
each player bids a card that it keeps no longer, and the highest bid takes the prize; where several
bid the same highest card, nobody does. Only who took the prize is told, not the bids. The last
round plays itself. Players choose in turn, but none sees the others' choice. Observation: float32
[N + 2 K^2 + K N], the player who moves, and for each round the prize, its own bid and who took the
prize, all one-hot, zeros for what has not happened. Action: the card to bid, from 0. Reward, at the
end: those with the most points share 1 and the others share -1; if all have as many, 0. Rules as in
OpenSpiel's game with imperfect information (Lanctot et al., 2019, "OpenSpiel: a framework for
reinforcement learning in games"); Ross (1971), "Goofspiel: the game of pure strategy".
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.rules import PLAYERS, Rules, environment, one_hot

SMALL = 20_000  # histories up to which runs report their exploitability
ORDERS = ("random", "descending", "ascending")
NOT_YET = -1


@struct
class State:
    prizes: Any  # int32 [K]: the prize of each round, from 0
    bids: Any  # int32 [N, K]: the card of each player in each round


def _moves(state: State) -> Array:
    return (jnp.asarray(state.bids) != NOT_YET).sum(dtype=jnp.int32)


def _round(state: State) -> Array:
    bids = jnp.asarray(state.bids)
    return jnp.minimum(_moves(state) // len(bids), bids.shape[1] - 2)


def _mover(state: State) -> Array:
    return _moves(state) % len(jnp.asarray(state.bids))


def _play(state: State, action: Array) -> State:
    bids = jnp.asarray(state.bids)
    return State(state.prizes, bids.at[_mover(state), _round(state)].set(action))


def _legal(state: State) -> Array:
    own = jnp.asarray(state.bids)[_mover(state)]
    return ~(own[:, None] == jnp.arange(own.size)).any(0)


def _takers(bids: Array) -> Array:
    """Return who takes the prize of each round, bool [N, K]: the only highest bid."""
    highest = bids == bids.max(0)
    return highest & (highest.sum(0) == 1)


def points(state: State) -> Array:
    """Return the points of each player at the end, float32 [N]."""
    bids = jnp.asarray(state.bids)
    cards = bids.shape[1]
    left = cards * (cards - 1) // 2 - bids[:, :-1].sum(1)  # the card of the last round
    bids = bids.at[:, -1].set(left)
    return (_takers(bids) * (jnp.asarray(state.prizes) + 1)).sum(1).astype(jnp.float32)


def _payoff(state: State, params: Tree) -> Array:
    total = points(state)
    best = total == total.max()
    others = jnp.maximum((~best).sum(), 1)
    return jnp.where(best.all(), 0.0, jnp.where(best, 1 / best.sum(), -1 / others))


def _observe(state: State) -> Array:
    bids = jnp.asarray(state.bids)
    players, cards = bids.shape
    mover, rounds, now = _mover(state), jnp.arange(cards), _moves(state) // players
    shown = jnp.where(rounds <= now, jnp.asarray(state.prizes), NOT_YET)
    taken = _takers(bids) & (rounds < now)
    coded = lambda x: (x[:, None] == jnp.arange(cards)).astype(jnp.float32).ravel()
    return jnp.concatenate(
        [one_hot(mover, players), coded(shown), coded(bids[mover]), taken.T.ravel() * 1.0]
    )


def _expert(state: State) -> Array:
    """Bid the card that equals the prize."""
    return jnp.asarray(state.prizes)[_round(state)].astype(jnp.int32)


def make_rules(cards: int, players: int, order: str) -> Rules:
    """Return the rules for so many cards and players; order: one of `ORDERS`."""
    rising = np.arange(cards, dtype=np.int32)
    decks = {
        "random": lambda: np.asarray(list(itertools.permutations(rising)), np.int32),
        "descending": lambda: rising[None, ::-1].copy(),
        "ascending": lambda: rising[None],
    }[order]()
    return Rules(
        deals=State(decks, np.full((len(decks), players, cards), NOT_YET, np.int32)),
        play=_play,
        mover=_mover,
        legal=_legal,
        observe=_observe,
        over=lambda state: _moves(state) >= players * (cards - 1),
        payoff=_payoff,
        num_actions=cards,
        max_moves=players * (cards - 1),
        num_players=players,
    )


@functools.cache
def goofspiel(cards: int = 4, players: int = PLAYERS, order: str = "descending") -> Environment:
    """Goofspiel for two or more players.

    cards: number K of cards of each player, at least 2. players: number N of players, at least 2.
    order: of the prizes: random, descending or ascending.
    """
    if cards < 2 or players < 2:
        raise UserError(
            f"goofspiel has {cards} cards and {players} players; it needs at least 2 of each."
        )
    if order not in ORDERS:
        raise UserError(f"The order of prizes is '{order}'; it must be one of {', '.join(ORDERS)}.")
    rules = make_rules(cards, players, order)
    histories = len(rules.deals.prizes) * math.factorial(cards) ** players
    return environment("goofspiel", rules, render=_render, small=histories <= SMALL, expert=_expert)


def _render(state: State) -> np.ndarray:
    """Draw a column for each round: the prize above, and below the bid of each player, as bars."""
    bids, prizes = np.asarray(state.bids), np.asarray(state.prizes)
    players, cards = bids.shape
    shown = int((bids >= 0).sum()) // players
    size = 12.0 * cards + 20.0
    height = int(size * (players + 1)) + 10
    canvas = drawing.Canvas(50 * cards + 10, height, scale=1.0, origin=(0, height))
    colors = (drawing.STEEL, drawing.BLUE, drawing.ORANGE, drawing.SHADE)
    rows = [np.where(np.arange(cards) <= shown, prizes, NOT_YET), *bids]
    for i, row in enumerate(rows):
        bottom = size * (players - i) + 10.0
        for round_, card in enumerate(row):
            x, top = 10.0 + 50.0 * round_, bottom + 12.0 * (int(card) + 1)
            if card != NOT_YET:
                color = colors[min(i, len(colors) - 1)]
                canvas.polygon([(x, bottom), (x + 40, bottom), (x + 40, top), (x, top)], color)
    return canvas.frame()
