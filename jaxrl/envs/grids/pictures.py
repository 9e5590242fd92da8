"""Images of grid environments, drawn on the host: tiles with glyphs for doors, keys, objects and
the agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.envs import drawing
from jaxrl.envs.grids import cells

_PURPLE, _YELLOW = (138, 94, 176), (214, 172, 48)
COLORS = (  # of objects, by number
    drawing.RED,
    drawing.GREEN,
    drawing.BLUE,
    _PURPLE,
    _YELLOW,
    drawing.STEEL,
)
_WALL, _FLOOR, _LAVA, _HAZARD = (88, 96, 110), (236, 238, 240), (230, 112, 50), (226, 206, 236)
_GOAL = (120, 190, 140)


def frame(
    grid: Any,
    row: Any,
    column: Any,
    heading: Any = None,
    carrying: Any = cells.EMPTY,
    goal: tuple[Any, Any] | None = None,
) -> np.ndarray:
    """Draw the grid, the agent (an arrow if it has a heading, else a disc) with what it carries,
    and a `goal` (row, column) that is not a cell of the grid itself: uint8 [height, width, 3]."""
    codes = np.array(grid, np.uint8)
    size = int(np.clip(480 // max(codes.shape), 10, 40))
    size = max(size, -(-100 // min(codes.shape)))
    tiles = drawing.tiles(_ground(codes, goal), size)
    canvas = Glyphs(tiles, size)
    for (y, x), code in np.ndenumerate(codes):
        _object(canvas, y, x, int(code))
    y, x = int(row), int(column)
    if heading is None:
        canvas.disc(y, x, 0.5, 0.5, 0.32, drawing.INK)
    else:
        canvas.polygon(
            y, x, [(0.86, 0.5), (0.2, 0.84), (0.34, 0.5), (0.2, 0.16)], drawing.INK, int(heading)
        )
    if int(carrying) != cells.EMPTY:
        canvas.disc(y, x, 0.78, 0.22, 0.2, drawing.PAPER)
        canvas.disc(y, x, 0.78, 0.22, 0.15, COLORS[(int(carrying) >> 4) & 7])
    return canvas.frame()


def _ground(codes: np.ndarray, goal: tuple[Any, Any] | None) -> np.ndarray:
    """Return the colors below the glyphs, [H, W, 3]."""
    ground = np.full((*codes.shape, 3), _FLOOR, np.uint8)
    kinds = codes & 15
    for kind, color in (
        (cells.WALL_KIND, _WALL),
        (cells.GOAL_KIND, _GOAL),
        (cells.LAVA, _LAVA),
        (cells.HAZARD_KIND, _HAZARD),
    ):
        ground[kinds == kind] = color
    if goal is not None:
        ground[int(goal[0]), int(goal[1])] = _GOAL
    return ground


def _object(canvas: Glyphs, y: int, x: int, code: int) -> None:
    kind, color = code & 15, COLORS[min((code >> 4) & 7, len(COLORS) - 1)]
    if kind in (cells.CLOSED, cells.LOCKED):
        canvas.box(y, x, 0.06, 0.06, 0.94, 0.94, color)
        if kind == cells.LOCKED:
            canvas.disc(y, x, 0.5, 0.4, 0.14, drawing.INK)
            canvas.box(y, x, 0.43, 0.45, 0.57, 0.75, drawing.INK)
        else:
            canvas.box(y, x, 0.18, 0.18, 0.82, 0.82, drawing.PAPER)
            canvas.disc(y, x, 0.68, 0.5, 0.1, color)
    elif kind == cells.DOOR:
        for low, high in ((0.02, 0.16), (0.84, 0.98)):
            canvas.box(y, x, low, 0.04, high, 0.96, color)
    elif kind == cells.KEY:
        canvas.disc(y, x, 0.5, 0.3, 0.2, color)
        canvas.disc(y, x, 0.5, 0.3, 0.08, _FLOOR)
        canvas.box(y, x, 0.44, 0.45, 0.56, 0.9, color)
        canvas.box(y, x, 0.5, 0.6, 0.72, 0.7, color)
        canvas.box(y, x, 0.5, 0.78, 0.72, 0.88, color)
    elif kind == cells.BALL:
        canvas.disc(y, x, 0.5, 0.5, 0.32, color)
    elif kind == cells.BOX:
        canvas.box(y, x, 0.15, 0.15, 0.85, 0.85, color)
        canvas.box(y, x, 0.25, 0.25, 0.75, 0.45, drawing.PAPER)
        canvas.box(y, x, 0.25, 0.53, 0.75, 0.75, drawing.PAPER)
    elif kind == cells.LAVA:
        for height in (0.3, 0.6):
            wave = [(0.1 + 0.16 * i, height + 0.12 * (i % 2)) for i in range(6)]
            canvas.polygon(y, x, wave + [(a, b + 0.1) for a, b in wave[::-1]], (150, 50, 30))
    elif kind == cells.HAZARD_KIND:
        canvas.polygon(y, x, [(0.5, 0.14), (0.9, 0.84), (0.1, 0.84)], _PURPLE)
        canvas.box(y, x, 0.46, 0.36, 0.54, 0.62, drawing.PAPER)
        canvas.box(y, x, 0.46, 0.68, 0.54, 0.76, drawing.PAPER)
    elif kind == cells.ONE_WAY:
        arrow = [(0.92, 0.5), (0.5, 0.9), (0.5, 0.65), (0.08, 0.65), (0.08, 0.35), (0.5, 0.35)]
        canvas.polygon(y, x, [*arrow, (0.5, 0.1)], drawing.ORANGE, (code >> 4) & 7)
    elif kind == cells.FLOOR:
        canvas.box(y, x, 0.1, 0.1, 0.9, 0.9, tuple((c + 255) // 2 for c in color))


class Glyphs:
    """Canvas for shapes in the unit square of a cell (x to the right, y down), over an image."""

    def __init__(self, tiles: np.ndarray, size: int):
        from PIL import Image, ImageDraw  # late: training never draws

        self._unit = size * drawing.SUPERSAMPLING
        big = tiles.repeat(drawing.SUPERSAMPLING, 0).repeat(drawing.SUPERSAMPLING, 1)
        self._image = Image.fromarray(big)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(
        self,
        row: int,
        column: int,
        points: list[tuple[float, float]],
        fill: tuple[int, ...],
        heading: int = cells.EAST,
    ) -> None:
        for _ in range(heading):
            points = [(1 - y, x) for x, y in points]  # a quarter turn to the right
        self._draw.polygon(
            [((column + x) * self._unit, (row + y) * self._unit) for x, y in points], fill=fill
        )

    def box(self, row, column, left, top, right, bottom, fill) -> None:
        self.polygon(
            row, column, [(left, top), (right, top), (right, bottom), (left, bottom)], fill
        )

    def disc(self, row, column, x, y, radius, fill) -> None:
        u = self._unit
        self._draw.ellipse(
            (
                (column + x - radius) * u,
                (row + y - radius) * u,
                (column + x + radius) * u,
                (row + y + radius) * u,
            ),
            fill=fill,
        )

    def frame(self) -> np.ndarray:
        return np.asarray(self._image.reduce(drawing.SUPERSAMPLING), dtype=np.uint8)
