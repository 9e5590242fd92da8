"""Bodies described by capsules, as in MuJoCo's models: their masses, their contact points and their
pictures. On the host, in NumPy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl.envs import drawing
from jaxrl.envs.planar.skeletons import Pose

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Capsule:
    """Cylinder with round ends on a link, from `start` to `end` in the link's frame."""

    link: int
    start: Point
    end: Point
    radius: float


def capsule(link: int, center: Point, half: float, angle: float, radius: float) -> Capsule:
    """Build a capsule from its center, half its length, and its angle about +y from the z axis."""
    x, z = half * math.sin(angle), half * math.cos(angle)
    return Capsule(link, (center[0] - x, center[1] - z), (center[0] + x, center[1] + z), radius)


def masses(
    capsules: Sequence[Capsule], links: int, density: float = 1000.0, total: float | None = None
) -> dict[str, Any]:
    """Compute `mass` [L], `inertia` [L] and `center` [L, 2] of links made of solid capsules, as
    fields of `Physics`; scaled to a `total` mass if one is given."""
    mass, center, inertia = np.zeros(links), np.zeros((links, 2)), np.zeros(links)
    parts = [(c, *_solid(c, density)) for c in capsules]
    for c, m, _ in parts:
        mass[c.link] += m
        center[c.link] += m * (np.array(c.start) + np.array(c.end)) / 2
    center /= mass[:, None]
    for c, m, own in parts:
        away = (np.array(c.start) + np.array(c.end)) / 2 - center[c.link]
        inertia[c.link] += own + m * away @ away
    scale = 1.0 if total is None else total / mass.sum()
    return {"mass": mass * scale, "inertia": inertia * scale, "center": center}


def _solid(c: Capsule, density: float) -> tuple[float, float]:
    """Return mass, and moment of inertia about the center across the axis."""
    r, length = c.radius, math.dist(c.start, c.end)
    cylinder = density * math.pi * r**2 * length
    ball = density * math.pi * r**3 * 4 / 3
    inertia = cylinder * (length**2 / 12 + r**2 / 4)
    inertia += ball * (2 / 5 * r**2 + length**2 / 4 + 3 / 8 * length * r)
    return cylinder + ball, inertia


def draw(
    canvas: drawing.Canvas,
    capsules: Sequence[Capsule],
    places: Sequence[Pose],
    colors: Sequence[tuple[int, int, int]],
) -> None:
    """Draw the capsules, each in its color, the first ones behind the others."""
    for c, color in zip(capsules, colors, strict=True):
        start, end = (places[c.link].at(p) for p in (c.start, c.end))
        canvas.rod(start, end, color, 2 * c.radius)
