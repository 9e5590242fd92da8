"""Tic-tac-toe solved by minimax: the value of every move, and a perfect player.

Evaluate in the game against it with `--evaluate-env jaxrl.exact.tic_tac_toe:against_perfect`.
Fields are numbered 0 to 8 row by row. A position is what the mover sees: float [..., 18], the
mover's stones and then the opponent's.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import precise
from jaxrl.core.types import Array, Environment, Policy
from jaxrl.envs.games.opponents import against
from jaxrl.envs.games.tic_tac_toe import tic_tac_toe

FIELDS = 9
ILLEGAL = -2  # value of an illegal move, which is worse than losing
_ROWS = np.arange(FIELDS).reshape(3, 3)
LINES = [*_ROWS, *_ROWS.T, _ROWS.diagonal(), _ROWS[::-1].diagonal()]
_WEIGHTS = 3 ** np.arange(FIELDS)


def code(observation: Array) -> Array:
    """The number of a position [..., 18], with its stones as digits in base 3: int32 [...]."""
    mine, theirs = observation[..., :FIELDS], observation[..., FIELDS:]
    return precise.matmul(mine + 2 * theirs, jnp.asarray(_WEIGHTS, jnp.float32)).astype(jnp.int32)


@functools.cache
def move_values() -> np.ndarray:
    """The value of each move in each position, numbered by `code`: int8 [3^9, 9].

    It is 1, 0 or -1 for the mover if both players play perfectly from then on, and `ILLEGAL` for
    moves and positions that do not exist or where the game is over.
    """
    table = np.full((3**FIELDS, FIELDS), ILLEGAL, np.int8)

    @functools.cache
    def value(mine: frozenset[int], theirs: frozenset[int]) -> int:
        if any(theirs.issuperset(line) for line in LINES):
            return -1
        free = [i for i in range(FIELDS) if i not in mine | theirs]
        if not free:
            return 0
        row = table[sum(3**i for i in mine) + 2 * sum(3**i for i in theirs)]
        for i in free:
            row[i] = -value(theirs, mine | {i})
        return int(row.max())

    value(frozenset(), frozenset())
    table.flags.writeable = False
    return table


def positions() -> np.ndarray:
    """All reachable positions in which the game is not over: float32 [4520, 18]."""
    codes = np.flatnonzero((move_values() > ILLEGAL).any(1))
    digits = codes[:, None] // _WEIGHTS % 3
    return np.concatenate([digits == 1, digits == 2], 1).astype(np.float32)


@functools.cache
def perfect_policy() -> Policy:
    """Make the policy that chooses uniformly among the best moves."""

    def act(state, timestep, memory, key, greedy):
        values = jnp.asarray(move_values())[code(timestep.observation)]
        best = values == values.max(-1, keepdims=True)
        action = jax.random.categorical(key, jnp.where(best, 0.0, -jnp.inf))
        return action.astype(jnp.int32), memory, {}

    return Policy(act, memory=lambda n: ())


@functools.cache
def against_perfect() -> Environment:
    """Make the game for one agent against `perfect_policy`, in which a draw is the best result."""
    return against(tic_tac_toe(), perfect_policy())
