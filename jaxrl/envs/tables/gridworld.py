"""Maps of characters as tables: cells, moves between them, slips, and pictures."""

from __future__ import annotations

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.envs import drawing
from jaxrl.envs.tables import pictures

WALL = "#"
LEFT, DOWN, RIGHT, UP = (0, -1), (1, 0), (0, 1), (-1, 0)  # row, column

COLORS = {
    WALL: drawing.INK,
    "S": (205, 220, 238),
    "G": drawing.GREEN,
    "H": drawing.BLUE,
    "C": drawing.RED,
}


class Grid:
    """Map made of rows of characters of one length; every cell except walls (`#`) is a state,
    numbered row by row.

    places: int [S, 2], row and column of each state; index: int [rows, columns], -1 at walls.
    """

    def __init__(self, rows: tuple[str, ...]):
        if not rows or len({len(row) for row in rows}) != 1 or not rows[0]:
            raise UserError(f"The map is {rows!r}; it must be rows of characters of one length.")
        self.cells = np.array([list(row) for row in rows])
        free = self.cells != WALL
        self.places = np.argwhere(free)
        self.index = np.where(free, np.cumsum(free).reshape(free.shape) - 1, -1)

    def find(self, kind: str) -> np.ndarray:
        """Return the states [n] whose character is `kind`."""
        return self.index[self.cells == kind]

    def neighbors(self, directions: tuple[tuple[int, int], ...]) -> np.ndarray:
        """Return the state [S, D] after a move in each direction; walls and edges stop it."""
        wanted = self.places[:, None] + np.asarray(directions)
        padded = np.pad(self.index, 1, constant_values=-1)
        reached = padded[wanted[..., 0] + 1, wanted[..., 1] + 1]
        return np.where(reached < 0, np.arange(len(self.places))[:, None], reached)

    def render(self) -> pictures.Render:
        colors = np.array([[COLORS.get(c, drawing.SHADE) for c in row] for row in self.cells])
        return pictures.board(colors, self.places)


def slips(neighbors: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return successors and probabilities [S, A, K] of actions that may go in several directions.

    neighbors: [S, D]; probability: [A, D], each row with the same number K of positive entries.
    """
    _, directions = np.nonzero(probability)
    taken = directions.reshape(len(probability), -1)
    chances = np.take_along_axis(probability, taken, axis=1)
    return neighbors[:, taken], np.broadcast_to(chances, (len(neighbors), *chances.shape))


def sideways(straight: float) -> np.ndarray:
    """Return probabilities [4, 4] for four directions in rotating order: ahead with probability
    `straight`, else to either side with equal probability."""
    side = (1 - straight) / 2
    ahead = np.eye(4)
    return straight * ahead + side * (np.roll(ahead, 1, axis=1) + np.roll(ahead, -1, axis=1))
