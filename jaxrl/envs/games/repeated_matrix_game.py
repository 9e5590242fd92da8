"""Repeated rock, paper, scissors: several rounds against the same opponent.

In each round both players choose without seeing the other, the first player first, and then learn
both choices. Observation: float32 [8 + T], the player who chooses, one-hot; its own and the other's
choice in the last round, one-hot, zeros in the first one; and the round, one-hot. Older rounds have
to be remembered. Action: 0 rock, 1 paper, 2 scissors. Reward, at the end: in each round the loser
pays the winner the stake of the winner's choice, 1 unless `make("repeated_rock_paper_scissors",
stakes=...)` says otherwise. Nothing but the opponent's choices tells who it is, so this is a game
to infer that in.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.matrix_game import NOT_YET, ROCK_PAPER_SCISSORS
from jaxrl.envs.games.rules import Rules, environment, one_hot

CHOICES = 3
SMALL = 4  # rounds up to which `exact.games` enumerates the game


@struct
class Params:
    stakes: Any  # float32 [3]: what a win with rock, paper or scissors pays


@struct
class State:
    choices: Any  # int32 [T, 2]: both players' choice in each round


def _moves(state: State) -> Array:
    return (jnp.asarray(state.choices) != NOT_YET).sum(dtype=jnp.int32)


def _mover(state: State) -> Array:
    return _moves(state) % 2


def _round(state: State) -> Array:
    return jnp.minimum(_moves(state) // 2, len(state.choices) - 1)


def _play(state: State, action: Array) -> State:
    choices = jnp.asarray(state.choices)
    return State(choices.at[_round(state), _mover(state)].set(action))


def _observe(state: State) -> Array:
    mover, now = _mover(state), _round(state)
    last = jnp.where(now > 0, jnp.asarray(state.choices)[now - 1], NOT_YET)
    own, other = one_hot(last[mover], CHOICES), one_hot(last[1 - mover], CHOICES)
    return jnp.concatenate([one_hot(mover, 2), own, other, one_hot(now, len(state.choices))])


def _remember(state: State) -> Array:
    """Return the rounds that are over."""
    choices = jnp.asarray(state.choices)
    past = jnp.arange(len(choices)) < _moves(state) // 2
    return jnp.where(past[:, None], choices, NOT_YET)


def _payoff(state: State, params: Params) -> Array:
    choices = jnp.asarray(state.choices)
    won = payoff_matrix(params.stakes)[choices[:, 0], choices[:, 1]].sum()
    return jnp.stack([won, -won])


def payoff_matrix(stakes: Any) -> Array:
    """Return the payoff [3, 3] of the row's choice against the column's."""
    won = jnp.maximum(ROCK_PAPER_SCISSORS, 0) * jnp.asarray(stakes, jnp.float32)[:, None]
    return won - won.T


def make_rules(rounds: int) -> Rules:
    """Return the rules of so many rounds."""
    return Rules(
        deals=State(np.full((1, rounds, 2), NOT_YET, np.int32)),
        play=_play,
        mover=_mover,
        legal=lambda state: jnp.ones(CHOICES, bool),
        observe=_observe,
        over=lambda state: _moves(state) >= 2 * len(state.choices),
        payoff=_payoff,
        num_actions=CHOICES,
        max_moves=2 * rounds,
        remember=_remember,
    )


@functools.cache
def repeated_rock_paper_scissors(rounds: int = 3) -> Environment:
    """Repeated rock, paper, scissors for two players.

    rounds: number T of rounds, at least 1.
    """
    if rounds < 1:
        raise UserError(f"repeated_rock_paper_scissors needs at least 1 round, got {rounds}.")
    return environment(
        "repeated_rock_paper_scissors",
        make_rules(rounds),
        Params(np.ones(CHOICES, np.float32)),
        _render,
        small=rounds <= SMALL,
    )


def _render(state: State) -> np.ndarray:
    """Draw a column for each round and in it, for each player, its choice among three."""
    choices = np.asarray(state.choices)
    colors = np.full((7, len(choices), 3), drawing.PAPER, np.uint8)
    colors[CHOICES] = drawing.SHADE
    for round_, pair in enumerate(choices):
        for player, choice in enumerate(pair):
            if choice != NOT_YET:
                row = player * (CHOICES + 1) + choice
                colors[row, round_] = (drawing.BLUE, drawing.ORANGE)[player]
    return drawing.tiles(colors, 40)
