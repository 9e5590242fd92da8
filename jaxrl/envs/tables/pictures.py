"""Pictures of finite environments: a board of cells, or the states on a ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl.envs import drawing
from jaxrl.envs.tables.mdp import State, Table

Color = tuple[int, int, int]
Render = Callable[[Any, Any], np.ndarray]

LONG_SIDE, SHORT_SIDE = 400, 100  # pixels


class Board:
    """Canvas of `rows` x `columns` unit cells, addressed by row (0 at the top) and column."""

    def __init__(self, rows: int, columns: int):
        scale = LONG_SIDE / max(rows, columns)
        width = max(round(columns * scale), SHORT_SIDE)
        height = max(round(rows * scale), SHORT_SIDE)
        # Cells are centered if the board is thinner than the picture.
        left = (width - columns * scale) / 2
        top = (height - rows * scale) / 2
        self.canvas = drawing.Canvas(width, height, scale, (left, top))

    def cell(self, row: float, column: float, color: Color, margin: float = 0.02) -> None:
        """Draw a filled cell, with a thin line to its neighbors."""
        low, high = margin, 1 - margin
        corners = [(low, low), (high, low), (high, high), (low, high)]
        self.canvas.polygon([(column + x, -row - y) for x, y in corners], color)

    def disc(self, row: float, column: float, color: Color, radius: float = 0.3) -> None:
        """Draw a disc in the middle of a cell."""
        self.canvas.circle((column + 0.5, -row - 0.5), radius, color)

    def line(self, start: tuple, end: tuple, color: Color, width: float) -> None:
        """Draw a bar between two points `(row, column)`; corners of cells are whole numbers."""
        self.canvas.rod((start[1], -start[0]), (end[1], -end[0]), color, width)

    def frame(self) -> np.ndarray:
        return self.canvas.frame()


def board(colors: np.ndarray, places: np.ndarray) -> Render:
    """Build a renderer that shows cells in `colors` [rows, columns, 3] and a disc at the state's
    place: `places` [S, 2] holds rows and columns, negative for a state without a place."""

    def render(state: State, table: Table) -> np.ndarray:
        picture = Board(*colors.shape[:2])
        for row, column in np.ndindex(colors.shape[:2]):
            red, green, blue = (int(x) for x in colors[row, column])
            picture.cell(row, column, (red, green, blue))
        row, column = (int(x) for x in places[int(state.index)])
        if row >= 0:
            picture.disc(row, column, drawing.ORANGE)
        return picture.frame()

    return render


def ring(state: State, table: Table) -> np.ndarray:
    """Draw the states on a ring with a line for each possible transition; those from the current
    state are colored and as wide as they are likely under uniform actions. Terminal states are
    green."""
    successor, probability = np.asarray(table.successor), np.asarray(table.probability)
    count, here = len(successor), int(state.index)
    angles = 2 * np.pi * np.arange(count) / count
    points = [(math.sin(x), math.cos(x)) for x in angles]
    radius = min(0.12, 1.6 / count)
    canvas = drawing.Canvas(300, 300, scale=120, origin=(150, 150))
    for start in [s for s in range(count) if s != here and not table.terminal[s]]:
        for end in set(successor[start][probability[start] > 0].tolist()):
            canvas.line([points[start], points[end]], drawing.SHADE, 0.008)
    if not table.terminal[here]:
        likely = np.bincount(successor[here].ravel(), probability[here].ravel(), count)
        for end in np.flatnonzero(likely):
            width = 0.01 + 0.05 * likely[end] / likely.sum()
            canvas.line([points[here], points[end]], drawing.BLUE, width)
    for index, point in enumerate(points):
        color = drawing.GREEN if table.terminal[index] else drawing.STEEL
        canvas.circle(point, radius, drawing.ORANGE if index == here else color)
    return canvas.frame()
