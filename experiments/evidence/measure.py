"""Runs of a measuring function, and the one that claims have by default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.evidence.course import Course
from experiments.evidence.declare import Measure, Measured, Trial
from experiments.evidence.trials import (
    build,
    check,
    configure,
    gradient_steps,
    grid_points,
    schedule,
)
from jaxrl.core.errors import UserError
from jaxrl.core.types import Key

# Measuring functions find these here too.
__all__ = ["build", "check", "configure", "curve", "gradient_steps", "grid_points"]
__all__ += ["run", "schedule"]

AT_ONCE = 64  # runs in one program; more are no faster on two cores and need memory

# The learning curve: complete greedy episodes before learning begins and at the environment's
# points. `gradient_steps` are on batches or minibatches (an upper bound if epochs may stop early),
# which are reported and not made equal.
curve = Course(counts={"gradient_steps": gradient_steps})


def run(
    measure: Measure, trial: Trial, keys: Key, hyper: Mapping[str, Any]
) -> dict[str, list[float]]:
    """Measure runs, one for each key of `keys` [runs]: {metric: [runs]}, float64.

    hyper: hyperparameters of the runs, each a number or [runs].

    Up to `AT_ONCE` runs share a program; half as many, and half again, if the device has no memory
    for them. As many runs as before are the same program: a claim that reports as many seeds as it
    tunes runs (points times tuning seeds) compiles each side once. Raises `UserError` for a metric
    of another shape.
    """
    runs = len(keys)
    spread = {k: np.broadcast_to(np.float32(v), runs) for k, v in hyper.items()}
    size = math.ceil(runs / math.ceil(runs / AT_ONCE))
    while True:
        # All chunks have one size and share a program: the last run is repeated to fill the last.
        rows = np.minimum(np.arange(math.ceil(runs / size) * size), runs - 1).reshape(-1, size)
        try:
            found = [
                _as_arrays(measure(trial, keys[row], {k: v[row] for k, v in spread.items()}))
                for row in rows
            ]
            break
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or size == 1:
                raise
            size = math.ceil(size / 2)
    for name, values in found[0].items():
        if values.shape != (size,):
            raise UserError(
                f"'{name}' of '{trial.name}' in {trial.environment.label} is {list(values.shape)}; "
                f"it must be a number for each of {size} runs."
            )
    return {name: np.concatenate([x[name] for x in found])[:runs].tolist() for name in found[0]}


def _as_arrays(found: Measured) -> dict[str, np.ndarray]:
    found = jax.block_until_ready(dict(found))  # on a CPU, reading what had no memory never returns
    return {name: np.asarray(values, np.float64) for name, values in found.items()}
