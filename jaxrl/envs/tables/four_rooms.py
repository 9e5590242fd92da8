"""Four rooms joined by four hallways, in which moves often go astray.

Observation: float32 [104], one-hot over the free cells row by row. Action: 0 up, 1 down, 2 left, 3
right; it succeeds with probability `success_probability` (2 / 3), otherwise the move goes in one of
the other three directions, with equal probability; a move into a wall stays. Reward: 1 for arriving
at the goal (a hallway, `goal` 0 .. 3: north, west, east, south), else 0. Starts uniformly in any
other cell. Terminates at the goal; time limit 500 steps. Sutton, Precup and Singh (1999), "Between
MDPs and semi-MDPs" (discount 0.9); the time limit and the random start are common in the literature
on options. The expert is optimal at that discount.
"""

from __future__ import annotations

import functools

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs.tables import gridworld, mdp

ROWS = (
    "#############",
    "#     #     #",
    "#     #     #",
    "#           #",
    "#     #     #",
    "#     #     #",
    "## ####     #",
    "#     ### ###",
    "#     #     #",
    "#     #     #",
    "#           #",
    "#     #     #",
    "#############",
)
HALLWAYS = ((3, 6), (6, 2), (7, 9), (10, 6))  # row, column


@functools.cache
def four_rooms(
    goal: int = 2, success_probability: float = 2 / 3, observation: str = "one_hot"
) -> Environment:
    """The four rooms, limited to 500 steps. Raises `UserError` for a goal that is not a hallway."""
    if not 0 <= goal < len(HALLWAYS):
        raise UserError(f"The goal of 'four_rooms' is {goal}; it must be a hallway, 0 to 3.")
    row, column = HALLWAYS[goal]
    marked = tuple(
        line[:column] + "G" + line[column + 1 :] if i == row else line
        for i, line in enumerate(ROWS)
    )
    grid = gridworld.Grid(marked)
    (end,) = grid.find("G")
    neighbors = grid.neighbors((gridworld.UP, gridworld.DOWN, gridworld.LEFT, gridworld.RIGHT))
    astray = (1 - success_probability) / 3
    successor, probability = gridworld.slips(
        neighbors, np.full((4, 4), astray) + (success_probability - astray) * np.eye(4)
    )
    table = mdp.build(
        successor,
        probability,
        successor == end,
        start=[s for s in range(len(neighbors)) if s != end],
        terminal=end,
        success=end,
        discount=0.9,
    )
    return mdp.environment(
        "four_rooms", table, observation=observation, max_steps=500, render=grid.render()
    )
