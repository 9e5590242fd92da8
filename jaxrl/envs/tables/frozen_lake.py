"""Cross a frozen lake without falling into a hole.

Observation: float32 [size * size], one-hot over the cells row by row. Action: 0 left, 1 down, 2
right, 3 up; with `slippery`, the move succeeds with probability `success_probability` (1 / 3), else
it goes to either side with equal probability; a move off the lake stays. Reward: 1 for arriving at
the goal (bottom right), else 0. Starts top left. Terminates in a hole or at the goal; time limit
100 steps (4 x 4) or 200 (8 x 8). Gymnasium's `FrozenLake-v1` and `FrozenLake8x8-v1`. The expert is
optimal at a discount of 0.999.
"""

from __future__ import annotations

import functools

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.envs.tables import gridworld, mdp

MAPS = {
    4: ("SFFF", "FHFH", "FFFH", "HFFG"),
    8: (
        "SFFFFFFF",
        "FFFFFFFF",
        "FFFHFFFF",
        "FFFFFHFF",
        "FFFHFFFF",
        "FHHFFFHF",
        "FHFFHFHF",
        "FFFHFFFG",
    ),
}
MAX_STEPS = {4: 100, 8: 200}


@functools.cache
def frozen_lake(
    size: int = 4,
    slippery: bool = True,
    success_probability: float = 1 / 3,
    observation: str = "one_hot",
) -> Environment:
    """The lake of 4 x 4 or 8 x 8 cells. Raises `UserError` for any other size."""
    if size not in MAPS:
        raise UserError(f"The size of 'frozen_lake' is {size}; it must be 4 or 8.")
    grid = gridworld.Grid(MAPS[size])
    neighbors = grid.neighbors((gridworld.LEFT, gridworld.DOWN, gridworld.RIGHT, gridworld.UP))
    turns = gridworld.sideways(success_probability) if slippery else np.eye(4)
    successor, probability = gridworld.slips(neighbors, turns)
    goal = grid.find("G")
    table = mdp.build(
        successor,
        probability,
        np.isin(successor, goal),
        start=grid.find("S"),
        terminal=np.concatenate([goal, grid.find("H")]),
        success=goal,
        discount=0.999,
    )
    return mdp.environment(
        "frozen_lake",
        table,
        observation=observation,
        max_steps=MAX_STEPS[size],
        render=grid.render(),
    )
