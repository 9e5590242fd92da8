"""Pictures of the pushing table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxrl.envs import drawing
from jaxrl.envs.planar import tasks

PIXELS = 320  # length of the table's longer side
PALE = (171, 202, 187)  # green over the table's shade


def render(state: Any, params: Any) -> np.ndarray:
    """Draw the table from above, with the goal of the state."""
    return draw(state, params, state.goal)


def draw(state: Any, params: Any, goal: Any = None) -> np.ndarray:
    """Draw the table from above: the pusher blue, the object orange, the `goal` ([2] or [4]; None
    for none) pale green."""
    half = np.asarray(params.table, float)
    scale = PIXELS / (2 * half.max())
    width, height = (int(2 * side * scale) + 24 for side in half)
    canvas = drawing.Canvas(width, height, scale, (width / 2, height / 2))
    tasks.arena(canvas, float(half[0]), float(half[1]))
    if goal is not None:
        _goal(canvas, params, [float(number) for number in goal])
    for x, y, radius in np.asarray(params.posts, float):
        canvas.circle((x, y), radius, drawing.STEEL)
    x, y, _, _, angle, _ = (float(number) for number in state.object)
    _object(canvas, params, x, y, angle, drawing.ORANGE)
    pusher = (float(state.pusher[0]), float(state.pusher[1]))
    canvas.circle(pusher, float(params.pusher_radius), drawing.BLUE)
    return canvas.frame()


def _goal(canvas: drawing.Canvas, params: Any, goal: list[float]) -> None:
    if len(goal) == 4:
        _object(canvas, params, goal[0], goal[1], math.atan2(goal[3], goal[2]), PALE)
    else:
        canvas.circle((goal[0], goal[1]), float(params.goal_radius), PALE)
    canvas.circle((goal[0], goal[1]), 0.008, drawing.GREEN)


def _object(
    canvas: drawing.Canvas, params: Any, x: float, y: float, angle: float, fill: tuple
) -> None:
    parts = np.asarray(params.parts, float)
    cos, sin = math.cos(angle), math.sin(angle)
    if not len(parts):
        radius = float(params.object_radius)
        canvas.circle((x, y), radius, fill)
        rim = (x + radius * cos, y + radius * sin)
        canvas.line([(x, y), rim], drawing.SHADE, 0.008)
        return
    areas = parts[:, 2] * parts[:, 3]
    center = areas @ parts[:, :2] / areas.sum()
    for part in parts:
        points = []
        for s, t in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
            u, v = part[:2] - center + part[2:] * (s, t)
            points.append((x + cos * u - sin * v, y + sin * u + cos * v))
        canvas.polygon(points, fill)
