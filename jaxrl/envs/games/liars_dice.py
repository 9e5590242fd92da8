"""Liar's dice for two: bid how many dice show a face, ever higher, until somebody doubts it.

Each player rolls its own dice and sees only these. In turn players raise the bid, to a larger
number of dice, or to as many of a higher face, or they doubt the last bid. The highest face counts
for every other. If at least as many dice as were bid show the face, the bidder wins; otherwise the
player who doubted does. Observation: float32 [2 + sides + bids], the player who moves, the share of
its dice that show each face, and which bids have been made (number by number, face by face within
one). Action: the index of a bid, or the last one to doubt. Reward: 1 to the winner and -1 to the
other, at the end. Rules as in OpenSpiel (Lanctot et al., 2019, "OpenSpiel: a framework for
reinforcement learning in games").
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.rules import PLAYERS, Rules, environment, one_hot

SMALL = 20_000  # histories up to which runs report their exploitability


@struct
class State:
    dice: Any  # int32 [2, D]: the face of each die, from 0
    bids: Any  # bool [B]: bids made so far; each is higher than those before it
    doubted: Any  # bool


def _count(state: State) -> Array:
    return jnp.asarray(state.bids).sum(dtype=jnp.int32)


def _mover(state: State) -> Array:
    return (_count(state) + jnp.asarray(state.doubted)) % PLAYERS


def _last(state: State) -> Array:
    """Return the index of the last bid; -1 before the first."""
    bids = jnp.asarray(state.bids)
    return jnp.max(jnp.where(bids, jnp.arange(bids.size), -1))


def _play(state: State, action: Array) -> State:
    bids = jnp.asarray(state.bids)
    return State(state.dice, bids | (jnp.arange(bids.size) == action), action == bids.size)


def _legal(state: State) -> Array:
    last = _last(state)
    return jnp.append(jnp.arange(jnp.asarray(state.bids).size) > last, last >= 0)


def _faces(dice: Array, sides: int) -> Array:
    """Return how many of the dice [..., D] show each face, int32 [..., sides]."""
    return (jnp.asarray(dice)[..., None] == jnp.arange(sides)).sum(-2)


def _matches(dice: Array, face: Array, sides: int) -> Array:
    """Return how many of the dice [..., D] count for `face`; the highest face counts for each."""
    dice = jnp.asarray(dice)
    return ((dice == face) | (dice == sides - 1)).sum(-1)


def make_rules(sides: int, dice: int) -> Rules:
    """Return the rules for `dice` dice of `sides` sides for each player."""
    rolls = np.asarray(list(itertools.product(range(sides), repeat=PLAYERS * dice)), np.int32)
    number, bids = len(rolls), PLAYERS * dice * sides

    def observe(state: State) -> Array:
        mover = _mover(state)
        own = _faces(jnp.asarray(state.dice)[mover], sides) / dice
        return jnp.concatenate([one_hot(mover, PLAYERS), own, state.bids]).astype(jnp.float32)

    def payoff(state: State, params: Tree) -> Array:
        bid = _last(state)
        true = _matches(state.dice, bid % sides, sides).sum() >= bid // sides + 1
        # Whoever doubted moved last, and now it is the bidder's turn.
        bidder = jnp.arange(PLAYERS) == _mover(state)
        return jnp.where(bidder == true, 1.0, -1.0)

    return Rules(
        deals=State(
            rolls.reshape(number, PLAYERS, dice),
            np.zeros((number, bids), bool),
            np.zeros(number, bool),
        ),
        play=_play,
        mover=_mover,
        legal=_legal,
        observe=observe,
        over=lambda state: jnp.asarray(state.doubted),
        payoff=payoff,
        num_actions=bids + 1,
        max_moves=bids + 1,
    )


@functools.cache
def liars_dice(sides: int = 4, dice: int = 1) -> Environment:
    """Liar's dice for two players.

    sides: number of sides of each die, at least 2. dice: number of dice of each player.
    """
    if sides < 2 or dice < 1:
        raise UserError(
            f"liars_dice has {sides} sides and {dice} dice a player; it needs at least 2 and 1."
        )
    rules = make_rules(sides, dice)

    def expert(state: State) -> Array:
        """Doubt a bid that the own dice and the other's expected ones do not reach; otherwise make
        the lowest bid of the face of which the mover has most."""
        own, last = jnp.asarray(state.dice)[_mover(state)], _last(state)
        counting = jnp.where(last % sides == sides - 1, 1, 2)  # faces that count for the bid
        expected = dice * counting / sides + _matches(own, last % sides, sides)
        doubt = (last >= 0) & (expected < last // sides + 1)
        most = jnp.argmax(_faces(own, sides))
        bids = jnp.arange(rules.num_actions - 1)
        higher = (bids > last) & (bids % sides == most)
        bid = jnp.where(higher.any(), jnp.argmax(higher), rules.num_actions - 1)
        return jnp.where(doubt, rules.num_actions - 1, bid).astype(jnp.int32)

    histories = len(rules.deals.dice) * (2 ** (rules.num_actions - 1) - 1)
    draw = functools.partial(_render, sides)
    return environment("liars_dice", rules, render=draw, small=histories <= SMALL, expert=expert)


def _render(sides: int, state: State) -> np.ndarray:
    """Draw the faces as numbers of marks, a row for each player's dice, and between them a field
    for each bid, dark once it was made."""
    dice, bids = np.asarray(state.dice), np.asarray(state.bids)
    width = max(60 * dice.shape[1], 30 * bids.size) + 20
    canvas = drawing.Canvas(width, 200, scale=1.0, origin=(0, 200))
    for player, color in enumerate((drawing.BLUE, drawing.ORANGE)):
        for i, face in enumerate(dice[player]):
            x, y = 10.0 + 60.0 * i, 140.0 if player == 0 else 10.0
            canvas.polygon([(x, y), (x + 50, y), (x + 50, y + 50), (x, y + 50)], drawing.SHADE)
            for mark in range(int(face) + 1):
                canvas.circle((x + 10 + 15 * (mark % 3), y + 10 + 15 * (mark // 3)), 5.0, color)
    for bid, made in enumerate(bids):
        canvas.circle((25.0 + 30.0 * bid, 100.0), 12.0, drawing.STEEL if made else drawing.SHADE)
    return canvas.frame()
