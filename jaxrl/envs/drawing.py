"""Draw simple scenes on the host: shapes in scene units, anti-aliased, as uint8 images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Point = tuple[float, float]

SUPERSAMPLING = 2  # drawn at this multiple of the size, then averaged: Pillow has no anti-aliasing

PAPER = (250, 250, 248)
INK = (52, 58, 70)
SHADE = (225, 228, 232)
STEEL = (120, 130, 145)
BLUE = (54, 110, 180)
ORANGE = (222, 132, 58)
RED = (196, 66, 66)
GREEN = (62, 148, 96)


class Canvas:
    """Picture of `width` x `height` pixels, drawn in scene units with y pointing up.

    scale: pixels per scene unit; origin: the pixel (from the top left) of the scene's (0, 0). Line
    widths and radii are in scene units too.
    """

    def __init__(self, width: int, height: int, scale: float, origin: Point):
        from PIL import Image, ImageDraw  # late: training never draws

        self._size = (width, height)
        self._scale = scale * SUPERSAMPLING
        self._origin = (origin[0] * SUPERSAMPLING, origin[1] * SUPERSAMPLING)
        self._image = Image.new("RGB", (width * SUPERSAMPLING, height * SUPERSAMPLING), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, points: Sequence[Point], fill: tuple[int, int, int]) -> None:
        """Draw a filled polygon."""
        self._draw.polygon([self._pixel(p) for p in points], fill=fill)

    def line(self, points: Sequence[Point], fill: tuple[int, int, int], width: float) -> None:
        """Draw a line through `points`."""
        pixels = max(1, round(width * self._scale))
        self._draw.line([self._pixel(p) for p in points], fill=fill, width=pixels, joint="curve")

    def circle(self, center: Point, radius: float, fill: tuple[int, int, int]) -> None:
        """Draw a filled circle."""
        (x, y), r = self._pixel(center), radius * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def rod(self, start: Point, end: Point, fill: tuple[int, int, int], width: float) -> None:
        """Draw a bar with round ends."""
        # As a polygon: Pillow rounds the widths of lines, and the round ends would stand out.
        length = math.dist(start, end) or 1.0
        dx = -(end[1] - start[1]) / length * width / 2
        dy = (end[0] - start[0]) / length * width / 2
        self.polygon(
            [
                (start[0] + dx, start[1] + dy),
                (end[0] + dx, end[1] + dy),
                (end[0] - dx, end[1] - dy),
                (start[0] - dx, start[1] - dy),
            ],
            fill,
        )
        self.circle(start, width / 2, fill)
        self.circle(end, width / 2, fill)

    def frame(self) -> np.ndarray:
        """Return the picture so far, uint8 `[height, width, 3]`."""
        return np.asarray(self._image.reduce(SUPERSAMPLING), dtype=np.uint8)

    def _pixel(self, point: Point) -> Point:
        x, y = self._origin
        return (x + point[0] * self._scale, y - point[1] * self._scale)


def tiles(colors: np.ndarray, size: int) -> np.ndarray:
    """Draw `colors` `[rows, columns, 3]` as squares of `size` pixels with a thin line between them,
    row 0 at the top: uint8 `[rows * size, columns * size, 3]`."""
    picture = np.asarray(colors, np.uint8).repeat(size, axis=0).repeat(size, axis=1)
    line = (
        np.arange(len(picture)) % size == size - 1,
        np.arange(picture.shape[1]) % size == size - 1,
    )
    grid = line[0][:, None] | line[1][None, :]
    return np.where(grid[..., None], (picture * 0.9).astype(np.uint8), picture)
