"""Tic-tac-toe: three stones in a row win.

Observation: float32 [18], the mover's stones on the nine cells and then the other player's. Action:
the cell (row by row) to put a stone on; occupied cells are illegal. Reward: 1 for three in a row,
column or diagonal and -1 for the other player, at the end; 0 for a full board without. Optimal play
is a draw.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.rules import Rules, environment, one_hot

CELLS = 9
LINES = np.asarray(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]
)


@struct
class State:
    stones: Any  # bool [2, 9]: stones of each player


def _moves(state: State) -> Array:
    return jnp.asarray(state.stones).sum(dtype=jnp.int32)


def _mover(state: State) -> Array:
    return _moves(state) % 2


def _play(state: State, action: Array) -> State:
    mine = (jnp.arange(2) == _mover(state))[:, None]
    return State(state.stones | (mine & (jnp.arange(CELLS) == action)))


def _lines(state: State) -> Array:
    """Return whether each player has three in a row: bool [2]."""
    return jnp.asarray(state.stones)[:, LINES].all(-1).any(-1)


def _legal(state: State) -> Array:
    free = ~jnp.asarray(state.stones).any(0)
    return free | ~free.any()


def _observe(state: State) -> Array:
    mover = one_hot(_mover(state), 2)
    stones = jnp.asarray(state.stones, jnp.float32)
    return jnp.concatenate([mover @ stones, mover[::-1] @ stones])


def _payoff(state: State, params: Tree) -> Array:
    won = _lines(state).astype(jnp.float32)
    return won - won[::-1]


RULES = Rules(
    deals=State(np.zeros((1, 2, CELLS), bool)),
    play=_play,
    mover=_mover,
    legal=_legal,
    observe=_observe,
    over=lambda state: _lines(state).any() | (_moves(state) >= CELLS),
    payoff=_payoff,
    num_actions=CELLS,
    max_moves=CELLS,
)


@functools.cache
def tic_tac_toe() -> Environment:
    """Tic-tac-toe for two players."""
    return environment("tic_tac_toe", RULES, render=_render)


def _render(state: State) -> np.ndarray:
    """Draw the board, with the first player's stones blue."""
    colors = np.full((CELLS, 3), drawing.PAPER, np.uint8)
    for stones, color in zip(np.asarray(state.stones), (drawing.BLUE, drawing.ORANGE), strict=True):
        colors[stones] = color
    return drawing.tiles(colors.reshape(3, 3, 3), 60)
