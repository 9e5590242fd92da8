"""The paper of two claims about Dreamer 4, and Catch as a dataset of other players."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence import measure
from experiments.evidence.declare import Arena, Side, Trial
from jaxrl import envs
from jaxrl.core.types import Algorithm, Environment

PAPER = {
    "title": "Training Agents Inside of Scalable World Models",
    "authors": "Hafner, Yan and Lillicrap",
    "year": 2025,
    "arxiv": "2509.24527",
}
ROWS, COLUMNS = 5, 3
STEPS = ROWS - 1  # of a falling ball
SIZES = {"data.batch_size": 48, "width": 32, "hidden": (32,), "scale": 4.0, "horizon": STEPS}
SIZES |= {"bins": 21, "symlog_range": 1.0}


def catch(episodes: int, low: float, high: float, balls: int = 1, **settings: Any) -> Arena:
    """Return Catch with some balls; the dataset of every side has `episodes` of it."""
    sizes = SIZES | {"data.episodes": episodes} | settings
    board = {"rows": ROWS, "columns": COLUMNS, "balls": balls}
    return Arena("catch", episodes * STEPS * balls, low, high, board, sizes)


def phase(
    trial: Trial, builder: Any, settings: Mapping[str, Any] = {}
) -> tuple[Environment, Algorithm, Any]:
    """Return the environment, a phase of Dreamer 4 there, and its Config.

    A tiny trial has little data.
    """
    tiny = {"data.episodes": 8, "data.batch_size": 4} if trial.tiny else {}
    side = Side(builder, {**trial.side.settings, **settings, **tiny})
    config = measure.configure(Trial(trial.name, side, trial.environment, trial.env_steps))
    env = envs.make(trial.environment.env, **trial.environment.params)
    return env, builder(env, config), config


def data_steps(keys: jax.Array, env: Environment, config: Any) -> jax.Array:
    """Return the environment steps of each run's data, [runs]."""
    return jnp.full(len(keys), float(config.data.episodes * env.max_steps))
