"""Walk from the left to the right through one of several corridors, some longer than others.

Observation: float32 [S], one-hot over the free cells row by row (12 by default). Action: 0 up, 1
down, 2 left, 3 right; a move into a wall stays. Reward: -1 for each step. Terminates at the goal;
time limit 6 steps for each of the `length` steps of a corridor. All corridors join a column at the
left and one at the right; start and goal are the middle cells of these. So two corridors are
equally long ways of `length` + 2 steps, and of three the one in the middle is 4 steps shorter than
the others. With `blocked`, the cell in the middle of that corridor cannot be entered; it remains a
state, so observations are the same. So policies that were learned in one of these environments can
be tried in another, after the idea of Kumar et al. (2020), "One solution is not all you need",
whose obstacles and forces differ from those of training. The expert is optimal (undiscounted).
"""

from __future__ import annotations

import functools

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs.options import at_least
from jaxrl.envs.tables import gridworld, mdp


@functools.cache
def corridors(
    number: int = 2, length: int = 4, blocked: int = -1, observation: str = "one_hot"
) -> Environment:
    """`number` corridors of `length` steps (even), side by side. `blocked`: the corridor that
    is blocked, from 0 at the top; -1 for none."""
    at_least("corridors", "number", number, 2)
    at_least("corridors", "length", length, 2)
    if length % 2:
        raise UserError(
            f"The length of 'corridors' is {length}; it must be even, so that a corridor has a "
            "middle."
        )
    if blocked not in range(-1, number):
        raise UserError(
            f"The blocked corridor of 'corridors' is {blocked!r}; it must be from 0 to "
            f"{number - 1}, or -1 for none."
        )
    wide, inner = np.arange(2 * number - 1)[:, None] % 2 == 0, np.arange(length + 1)
    cells = np.where(wide | (inner % length == 0), " ", gridworld.WALL)
    cells[number - 1, [0, length]] = "S", "G"
    grid = gridworld.Grid(tuple("".join(row) for row in cells))
    successor = grid.neighbors((gridworld.UP, gridworld.DOWN, gridworld.LEFT, gridworld.RIGHT))
    if blocked >= 0:
        closed = grid.index[2 * blocked, length // 2]
        here = np.arange(len(successor))[:, None]
        successor = np.where(successor == closed, here, successor)
    goal = grid.find("G")
    table = mdp.build(
        successor[..., None],
        1.0,
        -1.0,
        start=grid.find("S"),
        terminal=goal,
        success=goal,
        discount=1.0,
    )
    return mdp.environment(
        "corridors", table, observation=observation, max_steps=6 * length, render=grid.render()
    )
