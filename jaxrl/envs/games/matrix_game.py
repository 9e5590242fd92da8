"""Rock, paper, scissors, and other matrix games: both players choose without seeing the other.

The first player's choice stays hidden until the second has chosen. Observation: float32 [2], the
player who chooses, one-hot. Action: 0 rock, 1 paper, 2 scissors. Reward: `payoff[first's,
second's]` for the first player and its negative for the second, at the end;
`make("rock_paper_scissors", payoff=...)` makes another game of three choices. Optimal play makes
each choice a third of the time.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.rules import Rules, environment, one_hot

ROCK_PAPER_SCISSORS = np.asarray([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)
NOT_YET = -1


@struct
class Params:
    payoff: Any  # float32 [A, A]: payoff of the first player (rows)


@struct
class State:
    choices: Any  # int32 [2]


def _mover(state: State) -> Array:
    return (state.choices[0] != NOT_YET).astype(jnp.int32)


def _play(state: State, action: Array) -> State:
    return State(jnp.where(jnp.arange(2) == _mover(state), action, state.choices))


def _payoff(state: State, params: Params) -> Array:
    first, second = state.choices[0], state.choices[1]
    won = jnp.asarray(params.payoff, jnp.float32)[first, second]
    return jnp.stack([won, -won])


RULES = Rules(
    deals=State(np.full((1, 2), NOT_YET, np.int32)),
    play=_play,
    mover=_mover,
    legal=lambda state: jnp.ones(3, bool),
    observe=lambda state: one_hot(_mover(state), 2),
    over=lambda state: state.choices[1] != NOT_YET,
    payoff=_payoff,
    num_actions=3,
    max_moves=2,
)


@functools.cache
def rock_paper_scissors() -> Environment:
    """Rock, paper, scissors for two players."""
    params = Params(ROCK_PAPER_SCISSORS)
    return environment("rock_paper_scissors", RULES, params, _render, small=True)


def _render(state: State) -> np.ndarray:
    """Draw a row for each player, with its choice colored."""
    colors = np.full((2, 3, 3), drawing.PAPER, np.uint8)
    for player, choice in enumerate(np.asarray(state.choices)):
        if choice != NOT_YET:
            colors[player, choice] = (drawing.BLUE, drawing.ORANGE)[player]
    return drawing.tiles(colors, 60)
