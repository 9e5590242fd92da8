"""Pick up a passenger at one of four stands and drop them at another.

State: (taxi row, taxi column, passenger at stand 0 .. 3 or in the taxi (4), destination 0 .. 3),
numbered in this order. Observation: float32 [500], one-hot over these. Action: 0 south, 1 north, 2
east, 3 west, 4 pick up, 5 drop; with `rainy`, a move that is not blocked goes to either side of its
heading with probability 0.1 each. Reward: -1 for each step, -10 for an impossible pickup or drop,
20 for dropping the passenger at the destination, which terminates. Starts in any cell, with the
passenger at a stand other than the destination; time limit 200 steps. Dietterich (2000),
"Hierarchical Reinforcement Learning with the MAXQ Value Function Decomposition"; the rules of
Gymnasium's `Taxi-v4`, without its fickle passenger. The expert is optimal at a discount of 0.99.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from jaxrl.core.types import Environment
from jaxrl.envs import drawing
from jaxrl.envs.tables import mdp, pictures

SIDE = 5
STANDS = ((0, 0), (0, 4), (4, 0), (4, 3))  # red, green, yellow, blue
IN_TAXI = len(STANDS)
SHAPE = (SIDE, SIDE, IN_TAXI + 1, len(STANDS))
WALLS = ((0, 1), (1, 1), (3, 0), (4, 0), (3, 2), (4, 2))  # walls to the east of these cells
SOUTH, NORTH, EAST, WEST = (1, 0), (-1, 0), (0, 1), (0, -1)
HEADINGS = (SOUTH, NORTH, EAST, WEST)
PICK_UP, DROP = 4, 5
STRAIGHT_IN_RAIN = 0.8
YELLOW = (222, 190, 60)
COLORS = (drawing.RED, drawing.GREEN, YELLOW, drawing.BLUE)


@functools.cache
def taxi(rainy: bool = False, observation: str = "one_hot") -> Environment:
    """The taxi, limited to 200 steps."""
    states = list(itertools.product(*map(range, SHAPE)))
    side = (1 - STRAIGHT_IN_RAIN) / 2
    ahead = [STRAIGHT_IN_RAIN, side, side] if rainy else [1.0]
    successor = np.zeros((len(states), len(HEADINGS) + 2, len(ahead)), int)
    reward = np.full(successor.shape, -1.0)
    for index, (row, column, passenger, destination) in enumerate(states):
        for action, heading in enumerate(HEADINGS):
            cells = [_move(row, column, heading)] * len(ahead)
            if rainy and cells[0] != (row, column):
                across = (heading[1], heading[0])
                sides = (across, (-across[0], -across[1]))
                cells[1:] = [_move(row, column, to) for to in sides]
            successor[index, action] = [_number(*c, passenger, destination) for c in cells]
        here = STANDS.index((row, column)) if (row, column) in STANDS else None
        picked = IN_TAXI if passenger == here else passenger
        successor[index, PICK_UP] = _number(row, column, picked, destination)
        reward[index, PICK_UP] = -1 if passenger == here else -10
        if passenger == IN_TAXI and here is not None:
            dropped, paid = here, 20 if here == destination else -1
        else:
            dropped, paid = passenger, -10
        successor[index, DROP] = _number(row, column, dropped, destination)
        reward[index, DROP] = paid
    row, column, passenger, destination = np.array(states).T
    stands = np.array(STANDS)[destination]
    arrived = (passenger == destination) & (row == stands[:, 0]) & (column == stands[:, 1])
    probability = np.where(
        (np.arange(len(HEADINGS) + 2) < len(HEADINGS))[:, None], ahead, np.eye(len(ahead))[0]
    )
    table = mdp.build(
        successor,
        probability,
        reward,
        start=np.flatnonzero((passenger != IN_TAXI) & (passenger != destination)),
        terminal=np.flatnonzero(arrived),
        success=np.flatnonzero(arrived),
        discount=0.99,
    )
    return mdp.environment("taxi", table, observation=observation, max_steps=200, render=_render)


def _number(*state: int) -> int:
    return int(np.ravel_multi_index(state, SHAPE))


def _move(row: int, column: int, heading: tuple[int, int]) -> tuple[int, int]:
    new_row, new_column = row + heading[0], column + heading[1]
    blocked = heading[1] and (row, min(column, new_column)) in WALLS
    inside = 0 <= new_row < SIDE and 0 <= new_column < SIDE
    return (new_row, new_column) if inside and not blocked else (row, column)


def _render(state: mdp.State, table: mdp.Table) -> np.ndarray:
    row, column, passenger, destination = (
        int(x) for x in np.unravel_index(int(state.index), SHAPE)
    )
    picture = pictures.Board(SIDE, SIDE)
    for cell in range(SIDE * SIDE):
        picture.cell(cell // SIDE, cell % SIDE, drawing.SHADE)
    for index, (stand, color) in enumerate(zip(STANDS, COLORS, strict=True)):
        picture.cell(*stand, color)
        if index != destination:  # an outline only: the filled stand is the destination
            picture.cell(*stand, drawing.SHADE, margin=0.1)
    for wall_row, wall_column in WALLS:
        edge = wall_column + 1
        picture.line((wall_row, edge), (wall_row + 1, edge), drawing.INK, 0.08)
    picture.disc(row, column, drawing.ORANGE, 0.34)
    if passenger == IN_TAXI:
        picture.disc(row, column, drawing.INK, 0.16)
    else:
        picture.disc(*STANDS[passenger], drawing.INK, 0.16)
    return picture.frame()
