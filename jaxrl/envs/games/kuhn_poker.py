"""Kuhn poker: the smallest game in which bluffing is right.

Each player puts 1 into the pot and gets one of three cards (jack, queen, king). In turn they pass
or bet 1; after a bet, to bet is to call and to pass is to fold. Two passes or a call: the higher
card wins the pot; a fold loses it. Observation: float32 [7], the mover's own card and the stage of
the betting (start, after a pass, after a bet, after pass and bet), both one-hot. Action: 0 to pass,
1 to bet. Reward: chips won or lost, at the end. With optimal play the first player loses 1/18 per
game. Kuhn (1950), "A simplified two-person poker".
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

CARDS = 3
PASS, BET = 0, 1
START, PASSED, BETTED, RAISED = range(4)  # stages of the betting at which a player moves
SHOWDOWN, FOLDED, CALLED = 4, 5, 6  # how the betting ended
# The next stage after a pass and after a bet, from each stage; the ends stay as they are.
NEXT = np.asarray(
    [[PASSED, BETTED], [SHOWDOWN, RAISED], [FOLDED, CALLED], [FOLDED, CALLED],
     [4, 4], [5, 5], [6, 6]],
    np.int32,
)  # fmt: skip
MOVER = np.asarray([0, 1, 1, 0, 0, 0, 0], np.int32)


@struct
class State:
    cards: Any  # int32 [2]
    place: Any  # int32: stage of the betting
    folder: Any  # int32: who moved last, which is who folded if it ended so


def _play(state: State, action: Array) -> State:
    place = jnp.asarray(NEXT)[state.place, action]
    return State(state.cards, place, _mover(state))


def _mover(state: State) -> Array:
    return jnp.asarray(MOVER)[state.place]


def _observe(state: State) -> Array:
    card = state.cards[_mover(state)]
    return jnp.concatenate([one_hot(card, CARDS), one_hot(state.place, 4)])


def _payoff(state: State, params: Tree) -> Array:
    winner = jnp.where(
        state.place == FOLDED, 1 - state.folder, jnp.argmax(jnp.asarray(state.cards))
    )
    stake = jnp.where(state.place == CALLED, 2.0, 1.0)
    return jnp.where(jnp.arange(2) == winner, stake, -stake)


_HANDS = np.asarray(list(itertools.permutations(range(CARDS), 2)), np.int32)

RULES = Rules(
    deals=State(_HANDS, np.zeros(len(_HANDS), np.int32), np.zeros(len(_HANDS), np.int32)),
    play=_play,
    mover=_mover,
    legal=lambda state: jnp.ones(2, bool),
    observe=_observe,
    over=lambda state: state.place >= SHOWDOWN,
    payoff=_payoff,
    num_actions=2,
    max_moves=3,
)


@functools.cache
def kuhn_poker() -> Environment:
    """Kuhn poker for two players."""
    return environment("kuhn_poker", RULES, render=_render, small=True)


def _render(state: State) -> np.ndarray:
    """Draw both cards (one to three marks) and the chips in the pot, each player's on its side."""
    canvas = drawing.Canvas(240, 160, scale=1.0, origin=(0, 160))
    place = int(state.place)
    bets = {
        START: (0, 0), PASSED: (0, 0), BETTED: (1, 0), RAISED: (0, 1), SHOWDOWN: (0, 0),
        CALLED: (1, 1), FOLDED: (1, 0) if int(state.folder) else (0, 1),
    }[place]  # fmt: skip
    for player, (card, bet) in enumerate(zip(np.asarray(state.cards), bets, strict=True)):
        x = 20.0 + 140.0 * player
        color = (drawing.BLUE, drawing.ORANGE)[player]
        canvas.polygon([(x, 50), (x + 60, 50), (x + 60, 140), (x, 140)], drawing.SHADE)
        for mark in range(int(card) + 1):
            canvas.circle((x + 30.0, 70.0 + 25.0 * mark), 8.0, color)
        for chip in range(1 + bet):
            canvas.circle((x + 20.0 + 22.0 * chip, 25.0), 10.0, drawing.STEEL)
    return canvas.frame()
