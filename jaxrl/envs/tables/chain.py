"""Two temptations on a line of states: Strens' chain and RiverSwim.

`chain`: action 0 moves on by one state, action 1 back to the first; with probability `slip` (0.2)
the other action happens. Reward: 10 (`large`) for moving on in the last state (which stays there),
2 (`small`) for any move back. Observation: float32 [length], one-hot. Starts in the first state,
never terminates; time limit 1,000 steps. Dearden, Friedman and Russell (1998), Strens (2000), "A
Bayesian framework for reinforcement learning"; Gym's `NChain-v0`.

`river_swim`: action 0 swims left and always succeeds, action 1 right, against the current: in the
first state it stays (0.4) or moves on (0.6), in the middle it falls back (0.05), stays (0.6) or
moves on (0.35), in the last it falls back (0.4) or stays (0.6). Reward: 0.005 for swimming left in
the first state, 1 for swimming right in the last. Starts in the first state, never terminates; time
limit 20 steps. Strehl and Littman (2008), with the numbers of Osband, Van Roy and Russo (2013),
"(More) Efficient Reinforcement Learning via Posterior Sampling".

Both experts are optimal at a discount of 0.99.
"""

from __future__ import annotations

import functools

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs import drawing
from jaxrl.envs.tables import mdp, pictures


@functools.cache
def chain(
    length: int = 5,
    slip: float = 0.2,
    small: float = 2.0,
    large: float = 10.0,
    observation: str = "one_hot",
) -> Environment:
    """Strens' chain, limited to 1,000 steps. Raises `UserError` for fewer than 2 states."""
    _check("chain", length, 2)
    states = np.arange(length)
    on = np.minimum(states + 1, length - 1)
    back = np.zeros(length, int)
    moved = np.stack([on, back], -1)  # [S, 2]: successors under either action
    gained = np.stack([np.where(states == length - 1, large, 0.0), np.full(length, small)], -1)
    table = mdp.build(
        np.stack([moved, moved], 1),
        np.array([[1 - slip, slip], [slip, 1 - slip]]),
        np.stack([gained, gained], 1),
    )
    return mdp.environment(
        "chain", table, observation=observation, max_steps=1000, render=_picture(length)
    )


@functools.cache
def river_swim(length: int = 6, observation: str = "one_hot") -> Environment:
    """RiverSwim, limited to 20 steps. Raises `UserError` for fewer than 3 states."""
    _check("river_swim", length, 3)
    transition = np.zeros((length, 2, length))
    reward = np.zeros((length, 2))
    for state in range(length):
        transition[state, 0, max(state - 1, 0)] = 1.0
    for state in range(1, length - 1):
        transition[state, 1, state - 1 : state + 2] = 0.05, 0.6, 0.35
    transition[0, 1, :2] = 0.4, 0.6
    transition[-1, 1, -2:] = 0.4, 0.6
    reward[0, 0], reward[-1, 1] = 0.005, 1.0
    return mdp.environment(
        "river_swim",
        mdp.from_tensors(transition, reward),
        observation=observation,
        max_steps=20,
        render=_picture(length),
    )


def _check(name: str, length: int, least: int) -> None:
    if length < least:
        raise UserError(f"The length of '{name}' is {length}; it must be at least {least}.")


def _picture(length: int) -> pictures.Render:
    colors = np.full((1, length, 3), drawing.SHADE)
    colors[0, -1] = drawing.GREEN
    return pictures.board(colors, np.stack([np.zeros(length, int), np.arange(length)], -1))
