"""Parts that the tasks of both kits share besides their mechanics: options, random starts, delayed
actions and parts of pictures.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Key
from jaxrl.envs import drawing

Color = tuple[int, int, int]
Point = tuple[float, float]


def symmetric(key: Key, size: int) -> Array:
    """Draw uniform numbers [size] between -1 and 1."""
    low = np.nextafter(np.float32(-1), np.float32(0))  # -1 itself would be an infinite `normal`
    return jax.random.uniform(key, (size,), jnp.float32, low, 1.0)


def normal(symmetric: Array) -> Array:
    """Convert numbers from `symmetric` to standard normal ones."""
    return math.sqrt(2.0) * jax.lax.erf_inv(symmetric)


def delay_action(action: Array, before: Array, delay: Array | float) -> Array:
    """Return the action that is applied if `action` arrives `delay` (0 to 1) of a step late and
    `before` acts until then. Their mean over the step is applied throughout the step."""
    return (1 - delay) * action + delay * before


# ------------------------------------------------------------------------------ pictures


def rectangle(canvas: drawing.Canvas, low: Point, high: Point, fill: Color) -> None:
    """Draw a filled rectangle from two opposite corners."""
    (left, bottom), (right, top) = low, high
    canvas.polygon([(left, bottom), (right, bottom), (right, top), (left, top)], fill)


def arena(canvas: drawing.Canvas, x: float, y: float) -> None:
    """Draw a rectangle around the origin with half sides `x` and `y`, and its border."""
    edge = [(-x, -y), (x, -y), (x, y), (-x, y), (-x, -y)]
    canvas.polygon(edge, drawing.SHADE)
    canvas.line(edge, drawing.STEEL, 0.025 * max(x, y))


def track(canvas: drawing.Canvas, edge: float, stop: float = 0.1) -> None:
    """Draw the track of a cart, up to `edge` on both sides, with stops of height `stop`."""
    canvas.line([(-edge, 0), (edge, 0)], drawing.STEEL, 0.03)
    for x in (-edge, edge):
        canvas.line([(x, -stop), (x, stop)], drawing.RED, 0.04)
