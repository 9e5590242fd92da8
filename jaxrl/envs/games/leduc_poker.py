"""Leduc poker: two rounds of betting, and a card that both players see between them.

Six cards, two of each of three ranks (jack, queen, king). Each player puts 1 into the pot and gets
a card. In each round the first player begins; players fold (where there is a raise to answer),
check or call, or raise, at most two raises in a round, by 2 in the first and by 4 in the second.
Between the rounds a third card is turned up. At the end a pair with it wins the pot, then the
higher card; equal cards share. Observation: float32 [32], the player who moves, its own card, the
card turned up (zeros in the first round), and what was done in both rounds (four moves each), all
one-hot. Action: 0 to fold, 1 to check or call, 2 to raise. Reward: chips won or lost, at the end.
With optimal play the first player loses 0.0856 per game. Southey et al. (2005),
"Bayes' bluff: opponent modelling in poker".
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.rules import Rules, environment, one_hot

RANKS = 3
KING = RANKS - 1
FOLD, CALL, RAISE = range(3)
NOT_YET = -1
MOVES = 4  # at most in a round: check, raise, raise, call
RAISES = 2  # at most in a round
SIZES = np.asarray([2, 4], np.int32)  # of a raise in each round


@struct
class State:
    cards: Any  # int32 [3]: rank of each player's card and of the one that is turned up
    moves: Any  # int32 [2, 4]: what was done in each round


def _has_ended(moves: Array) -> Array:
    """Return whether each round [2, 4] has ended by a call, or by a second check."""
    return (moves[:, 1:] == CALL).any(1)


def _has_folded(state: State) -> Array:
    return (jnp.asarray(state.moves) == FOLD).any()


def _stage(state: State) -> Array:
    """Return the number of rounds that have ended: 2 at the showdown."""
    return _has_ended(jnp.asarray(state.moves)).sum(dtype=jnp.int32)


def _round(state: State) -> Array:
    return jnp.minimum(_stage(state), 1)


def _now(state: State) -> Array:
    """Return the moves of the round that is being played, [4]."""
    return jnp.asarray(state.moves)[_round(state)]


def _mover(state: State) -> Array:
    return (_now(state) != NOT_YET).sum(dtype=jnp.int32) % 2


def _play(state: State, action: Array) -> State:
    count = jnp.minimum((_now(state) != NOT_YET).sum(), MOVES - 1)
    return State(state.cards, jnp.asarray(state.moves).at[_round(state), count].set(action))


def _has_raise(state: State) -> Array:
    """Return whether the mover has a raise to answer."""
    now = _now(state)
    return now[jnp.maximum((now != NOT_YET).sum() - 1, 0)] == RAISE


def _legal(state: State) -> Array:
    more = (_now(state) == RAISE).sum() < RAISES
    return jnp.stack([_has_raise(state), jnp.ones((), bool), more])


def _observe(state: State) -> Array:
    mover, cards = _mover(state), jnp.asarray(state.cards)
    shown = jnp.where(_stage(state) > 0, cards[2], NOT_YET)
    done = (jnp.asarray(state.moves)[..., None] == jnp.arange(3)).astype(jnp.float32)
    own = one_hot(cards[mover], RANKS)
    return jnp.concatenate([one_hot(mover, 2), own, one_hot(shown, RANKS), done.ravel()])


def _payoff(state: State, params: Tree) -> Array:
    moves, cards = jnp.asarray(state.moves), jnp.asarray(state.cards)
    folded = _has_folded(state)
    raised = 1.0 + ((moves == RAISE).sum(1) * SIZES).sum()
    # Whoever folds has not matched the last raise.
    stake = raised - jnp.where(folded, jnp.asarray(SIZES)[_round(state)], 0)
    strength = cards[:2] + RANKS * (cards[:2] == cards[2])
    showdown = jnp.sign(strength - strength[::-1])
    # After a fold it would be the turn of the player who raised.
    winner = jnp.where(jnp.arange(2) == _mover(state), 1, -1)
    return stake * jnp.where(folded, winner, showdown)


def _expert(state: State) -> Array:
    """Raise with a pair or a king, call with a queen, and fold a jack."""
    card, shown = jnp.asarray(state.cards)[_mover(state)], jnp.asarray(state.cards)[2]
    strong = (card == KING) | ((_stage(state) > 0) & (card == shown))
    wish = jnp.where(strong, RAISE, jnp.where(card == 0, FOLD, CALL))
    return jnp.where(_legal(state)[wish], wish, CALL).astype(jnp.int32)


_DEALS = np.asarray(list(itertools.permutations(np.arange(2 * RANKS) // 2, 3)), np.int32)

RULES = Rules(
    deals=State(_DEALS, np.full((len(_DEALS), 2, MOVES), NOT_YET, np.int32)),
    play=_play,
    mover=_mover,
    legal=_legal,
    observe=_observe,
    over=lambda state: _has_folded(state) | (_stage(state) == 2),
    payoff=_payoff,
    num_actions=3,
    max_moves=2 * MOVES,
)


@functools.cache
def leduc_poker() -> Environment:
    """Leduc poker for two players."""
    return environment("leduc_poker", RULES, render=_render, small=True, expert=_expert)


def _render(state: State) -> np.ndarray:
    """Draw the cards (one to three marks), the one between the players once it is turned up, and
    below a mark for every move: gray for a call, a large colored one for a raise."""
    canvas = drawing.Canvas(360, 200, scale=1.0, origin=(0, 200))
    cards, stage = np.asarray(state.cards), int(_stage(state))
    for place, (card, x) in enumerate(zip(cards, (20, 280, 150), strict=True)):
        canvas.polygon([(x, 90), (x + 60, 90), (x + 60, 180), (x, 180)], drawing.SHADE)
        color = (drawing.BLUE, drawing.ORANGE, drawing.STEEL)[place]
        for mark in range(int(card) + 1 if place < 2 or stage else 0):
            canvas.circle((x + 30.0, 110.0 + 25.0 * mark), 8.0, color)
    for round_, moves in enumerate(np.asarray(state.moves)):
        for i, move in enumerate(moves):
            if move == NOT_YET:
                continue
            at = (30.0 + 180.0 * round_ + 35.0 * i, 40.0)
            color = (drawing.BLUE, drawing.ORANGE)[i % 2] if move == RAISE else drawing.STEEL
            canvas.circle(at, {FOLD: 4.0, CALL: 8.0, RAISE: 14.0}[int(move)], color)
    return canvas.frame()
