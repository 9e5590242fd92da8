"""Simple negotiation: two players trade wood and gold, and each knows only its own valuation.

Both begin with four pieces of each good; what a piece is worth to a player is drawn at the start.
In turn they offer a trade (one or two pieces of one good for one or two of the other), accept the
offer on the table, or do neither; after six turns the game is over, and the player who gained more
by its own valuation wins. Observation: float32 [20], of the mover: what wood and gold are worth to
it, its pieces and the other's (as fractions of all), the offer on the table and the turn, one-hot.
Actions: 0 neither, 1 accept, 2 to 9 an offer: `2 + 4 w + 2 (g - 1) + (r - 1)` gives g pieces of
wood (w = 0) or gold (w = 1) for r of the other good. Illegal: accepting without an offer, and
offers or trades that one of the two cannot pay. Reward: 1 for the winner, -1 for the other, 0 for
both if they gained the same, at the end. A small version of the game in Liu et al. (2025),
"SPIRAL".
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

TURNS = 6
PIECES = 4  # of each good, for each player
NEITHER, ACCEPT, OFFERS = 0, 1, 2  # actions from OFFERS on are offers
NONE = -1  # no offer on the table
WORTHS = np.asarray([[5, 15], [10, 10], [15, 5]], np.float32)  # of a piece of wood and of gold
HIGHEST = WORTHS.max()
# Wood and gold that the player who offers gains by each offer: [8, 2].
TRADES = np.asarray(
    [(-g, r) for g, r in itertools.product((1, 2), repeat=2)]
    + [(r, -g) for g, r in itertools.product((1, 2), repeat=2)],
    np.int32,
)


@struct
class State:
    worth: Any  # float32 [2, 2]: worth to each player of each good
    pieces: Any  # int32 [2, 2]: pieces that each player has of each good
    offer: Any  # int32: the offer on the table, made by the other player, or NONE
    turn: Any  # int32


def _mover(state: State) -> Array:
    return jnp.asarray(state.turn % 2, jnp.int32)


def _pieces_after(state: State, offer: Array, by: Array) -> Array:
    """Return the pieces after carrying out `offer` (0 to 7) of player `by`."""
    change = jnp.asarray(TRADES)[offer]
    return state.pieces + jnp.where((jnp.arange(2) == by)[:, None], change, -change)


def _play(state: State, action: Array) -> State:
    other = 1 - _mover(state)
    traded = _pieces_after(state, jnp.maximum(state.offer, 0), other)
    accepted = (action == ACCEPT) & (state.offer != NONE)
    return State(
        state.worth,
        jnp.where(accepted, traded, state.pieces),
        jnp.where(action >= OFFERS, action - OFFERS, NONE).astype(jnp.int32),
        state.turn + 1,
    )


def _legal(state: State) -> Array:
    mover = _mover(state)
    after = jnp.stack([_pieces_after(state, jnp.int32(i), mover) for i in range(len(TRADES))])
    offers = (after >= 0).all((1, 2))
    accept = (state.offer != NONE) & _is_feasible(state)
    return jnp.concatenate([jnp.ones(1, bool), accept[None], offers])


def _is_feasible(state: State) -> Array:
    return (_pieces_after(state, jnp.maximum(state.offer, 0), 1 - _mover(state)) >= 0).all()


def _observe(state: State) -> Array:
    mover = _mover(state)
    pieces = jnp.asarray(state.pieces, jnp.float32) / (2 * PIECES)
    return jnp.concatenate(
        [
            jnp.asarray(state.worth)[mover] / HIGHEST,
            pieces[mover],
            pieces[1 - mover],
            one_hot(state.offer, len(TRADES)),
            one_hot(state.turn, TURNS),
        ]
    )


def _payoff(state: State, params: Tree) -> Array:
    gain = (state.worth * (state.pieces - PIECES)).sum(-1)
    return jnp.sign(gain - gain[::-1]).astype(jnp.float32)


_PAIRS = np.stack([np.stack(pair) for pair in itertools.product(WORTHS, repeat=2)])

RULES = Rules(
    deals=State(
        _PAIRS,
        np.full((len(_PAIRS), 2, 2), PIECES, np.int32),
        np.full(len(_PAIRS), NONE, np.int32),
        np.zeros(len(_PAIRS), np.int32),
    ),
    play=_play,
    mover=_mover,
    legal=_legal,
    observe=_observe,
    over=lambda state: state.turn >= TURNS,
    payoff=_payoff,
    num_actions=OFFERS + len(TRADES),
    max_moves=TURNS,
)


@functools.cache
def negotiation() -> Environment:
    """The negotiation game for two players."""
    return environment("negotiation", RULES, render=_render)


def _render(state: State) -> np.ndarray:
    """Draw each player's pieces, wood in its upper row and gold in its lower one."""
    canvas = drawing.Canvas(320, 160, scale=1.0, origin=(0, 160))
    for player, pieces in enumerate(np.asarray(state.pieces)):
        for good, number in enumerate(pieces):
            y = 140.0 - 75.0 * player - 30.0 * good
            for piece in range(int(number)):
                x = 20.0 + 32.0 * piece
                color = (drawing.GREEN, drawing.ORANGE)[good]
                canvas.polygon(
                    [(x, y - 10), (x + 24, y - 10), (x + 24, y + 10), (x, y + 10)], color
                )
        canvas.line([(10.0, 80.0), (310.0, 80.0)], drawing.INK, 2.0)
    return canvas.frame()
