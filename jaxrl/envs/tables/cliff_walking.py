"""Walk along a cliff to the goal, far from it for safety or along its edge for speed.

Observation: float32 [48], one-hot over the 4 x 12 cells row by row. Action: 0 up, 1 right, 2 down,
3 left; with `slippery`, the move goes ahead or to either side with probability 1 / 3 each; a move
off the board stays. Reward: -1 for each step, -100 for a step into the cliff, which leads back to
the start (bottom left) without ending the episode. Terminates at the goal (bottom right); time
limit 200 steps (ours; Gymnasium has none). Sutton and Barto (2018), Example 6.6; Gymnasium's
`CliffWalking-v1` and `CliffWalkingSlippery-v1`. The expert is optimal (undiscounted).
"""

from __future__ import annotations

import functools

import numpy as np

from jaxrl.core.types import Environment
from jaxrl.envs.tables import gridworld, mdp

ROWS = (" " * 12, " " * 12, " " * 12, "S" + "C" * 10 + "G")


@functools.cache
def cliff_walking(slippery: bool = False, observation: str = "one_hot") -> Environment:
    """The cliff, limited to 200 steps."""
    grid = gridworld.Grid(ROWS)
    neighbors = grid.neighbors((gridworld.UP, gridworld.RIGHT, gridworld.DOWN, gridworld.LEFT))
    reached, probability = gridworld.slips(
        neighbors, gridworld.sideways(1 / 3) if slippery else np.eye(4)
    )
    start, goal, fallen = grid.find("S"), grid.find("G"), np.isin(reached, grid.find("C"))
    table = mdp.build(
        np.where(fallen, start, reached),
        probability,
        np.where(fallen, -100.0, -1.0),
        start=start,
        terminal=goal,
        success=goal,
        discount=1.0,
    )
    return mdp.environment(
        "cliff_walking", table, observation=observation, max_steps=200, render=grid.render()
    )
