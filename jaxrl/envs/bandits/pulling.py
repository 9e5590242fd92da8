"""Parts that bandits share: the observation of the last pull, regret, and a picture of the arms."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array
from jaxrl.envs import drawing


def check(name: str, num_arms: int, pulls: int) -> None:
    """Raise `UserError` for a bandit without arms or pulls."""
    if num_arms < 1 or pulls < 1:
        raise UserError(
            f"'{name}' has {num_arms} arms and {pulls} pulls; it must have at least one of each."
        )


def outcome(means: Array, action: Array) -> tuple[Array, Array]:
    """Return the mean of the pulled arm, and how far it lies below the best of `means` [A]."""
    mean = jnp.sum(jnp.where(jnp.arange(means.shape[0]) == action, means, 0.0))
    return mean, jnp.max(means) - mean


def last(num_arms: int, action: Array, reward: Array) -> Array:
    """Return the last arm, one-hot, and its reward: float32 [A + 1]; action -1 is none."""
    one_hot = (jnp.arange(num_arms) == action).astype(jnp.float32)
    return jnp.append(one_hot, reward)


SCORES = {"regret": "regret", "success": "success"}


def metrics(regret: Array, gap: Array | float) -> dict[str, Array]:
    """Return the metrics of a bandit; a pull is a success if its `gap` is 0."""
    # Up to rounding: a compiler may compute the best mean and the pulled arm's in two ways.
    return {"regret": regret, "success": jnp.asarray(gap < 1e-6, jnp.float32)}


def bars(means: Array) -> np.ndarray:
    """Draw a bar for each arm's expected reward, the best one green."""
    heights = np.asarray(means, float)
    count, best = len(heights), int(heights.argmax())
    bottom, top = min(0.0, heights.min()), max(1.0, heights.max())
    unit = 240 / (top - bottom)  # pixels per unit of reward
    canvas = drawing.Canvas(400, 280, scale=1.0, origin=(20, 260 + bottom * unit))
    width = 360 / count
    for arm, height in enumerate(heights * unit):
        left, right = (arm + 0.15) * width, (arm + 0.85) * width
        corners = [(left, 0.0), (right, 0.0), (right, height), (left, height)]
        canvas.polygon(corners, drawing.GREEN if arm == best else drawing.BLUE)
    canvas.line([(0.0, 0.0), (360.0, 0.0)], drawing.INK, 2.0)
    return canvas.frame()
