"""What Dreamer 4's two checks share: the paper, and Catch as data that somebody else played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence import measure
from experiments.evidence.declare import Side, Trial, World
from jaxrl import envs
from jaxrl.core.types import Algorithm, Environment

PAPER = {
    "title": "Training Agents Inside of Scalable World Models",
    "authors": "Hafner, Yan and Lillicrap",
    "year": 2025,
    "arxiv": "2509.24527",
}
ROWS, COLUMNS = 5, 3
STEPS = ROWS - 1  # in which a ball comes down
SIZES = {"data.batch_size": 48, "width": 32, "hidden": (32,), "scale": 4.0, "horizon": STEPS}
SIZES |= {"bins": 21, "symlog_range": 1.0}


def catch(episodes: int, low: float, high: float, balls: int = 1, **settings: Any) -> World:
    """Catch of so many balls, of which all sides have `episodes` in their data."""
    sizes = SIZES | {"data.episodes": episodes} | settings
    board = {"rows": ROWS, "columns": COLUMNS, "balls": balls}
    return World("catch", episodes * STEPS * balls, low, high, board, sizes)


def phase(
    trial: Trial, system: Any, settings: Mapping[str, Any] = {}
) -> tuple[Environment, Algorithm, Any]:
    """The environment, a phase of Dreamer 4 there, and its Config; of a tiny trial with little
    data."""
    tiny = {"data.episodes": 8, "data.batch_size": 4} if trial.tiny else {}
    side = Side(system, {**trial.side.settings, **settings, **tiny})
    config = measure.configured(Trial(trial.name, side, trial.environment, trial.env_steps))
    env = envs.make(trial.environment.env, **trial.environment.params)
    return env, system(env, config), config


def taken(keys: jax.Array, env: Environment, config: Any) -> jax.Array:
    """The environment steps of a run's data, [runs]."""
    return jnp.full(len(keys), float(config.data.episodes * env.max_steps))
