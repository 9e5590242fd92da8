"""Trials: the settings of a side in an arena, and how its algorithm spends the budget there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.evidence.declare import Trial
from jaxrl import envs
from jaxrl.core import hyper as hypers
from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Algorithm, Environment


def configure(trial: Trial, values: Mapping[str, float] = {}) -> Any:
    """Return the Config of a side, set by unique endings of names.

    The side's own settings override those of its environment (of which it may lack some), and
    `values` override both. Raises `UserError` for a setting of the side that does not exist, and
    for a value out of range.
    """
    config = trial.side.algorithm.Config()
    known = [name for name, _, _ in settings.walk(config)]
    there = {
        name: value
        for name, value in trial.environment.settings.items()
        if settings.candidates(name, known)
    }
    for changes in (there, trial.side.settings, values):
        config = settings.replace(config, changes)
    hypers.check(config)
    return config


def build(trial: Trial) -> tuple[Environment, Algorithm]:
    """Return the environment of a trial, and its side as an algorithm there."""
    env = envs.make(trial.environment.env, **trial.environment.params)
    return env, trial.side.algorithm(env, configure(trial))


def schedule(trial: Trial, algorithm: Algorithm) -> tuple[int, int]:
    """Return the number of evaluations after the beginning, and the algorithm's steps before each.

    Together they take exactly the trial's environment steps, a warm-up included. Raises `UserError`
    if they cannot, since budgets would differ.
    """
    if algorithm.env_steps == 0:
        raise UserError(f"'{trial.name}' takes no environment steps; such a claim has a measuring "
                        "function of its own.")  # fmt: skip
    points = trial.environment.points
    steps, rest = divmod(
        trial.env_steps - algorithm.initial_env_steps, algorithm.env_steps * points
    )
    if rest or steps < 1:
        raise UserError(
            f"In {trial.environment.label}, {trial.env_steps} environment steps, less "
            f"{algorithm.initial_env_steps} at the start, in {points} parts are no multiple of the "
            f"{algorithm.env_steps} that '{trial.name}' takes at once."
        )
    return points, steps


def gradient_steps(trial: Trial) -> int:
    """Return the gradient steps of a side, on batches or minibatches, in one algorithm step."""
    config = configure(trial)
    passes = getattr(config, "passes", None)
    each = passes.epochs * passes.minibatches if passes else 1
    return each * getattr(trial.side.algorithm, "updates", lambda config: 1)(config)


def check(trials: Iterable[Trial]) -> None:
    """Raise `UserError`, before anything is spent, if a trial of `curve` cannot be run.

    That is, if its budget is no multiple of a step's, if no side has a setting of its environment,
    or if a value of its grid is out of range or no hyperparameter's.
    """
    trials = list(trials)
    for trial in trials:
        _, algorithm = build(trial)
        schedule(trial, algorithm)
        for values in grid_points(trial.side.grid):
            configure(trial, values)
            hypers.override(algorithm.hyper, values)
        for name in trial.environment.settings:
            sides = [t for t in trials if t.environment == trial.environment]
            known = {k for t in sides for k, _, _ in settings.walk(t.side.algorithm.Config())}
            if not settings.candidates(name, known):
                raise unknown(f"setting of any side in {trial.environment.label}", name, known)


def grid_points(grid: Mapping[str, Iterable[float]]) -> list[dict[str, float]]:
    """Return all combinations of a grid's values; a single empty one if there is no grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
