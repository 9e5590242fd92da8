"""Trials: runs of a side in an environment, and what they measure."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Measure, Measured, Trial
from jaxrl import envs
from jaxrl.core import hyper as hypers
from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.train import start, train
from jaxrl.core.types import Algorithm, Environment, Key
from jaxrl.evaluation.evaluate import evaluate

AT_ONCE = 64  # runs in one program; more are no faster on two cores and need memory


# ------------------------------------------------------------------------------- trials


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


def curve(trial: Trial, keys: Key, hyper: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Measure learning curves of runs, each with its key and its hyperparameters, in one program.

    Complete greedy episodes are played before learning begins and at the environment's `points`,
    which are evenly spaced; the last is the end.

    Returns, each [runs]: the mean returns `untrained` (at the beginning) and `final` (at the end),
    and `score`, the mean over all points but the beginning; `env_steps`; and `gradient_steps`, on
    batches or minibatches (an upper bound if epochs may stop early), which are reported and not
    made equal. A tiny trial takes one step of its algorithm, whatever that costs.

    Run i and its evaluations depend on key i alone, so that sides are paired. It can be traced.
    Raises `UserError` as `configure` and `schedule` do.
    """
    env, algorithm = build(trial)
    points, steps = (1, 1) if trial.tiny else schedule(trial, algorithm)
    episodes = 2 if trial.tiny else trial.environment.episodes
    returns = _curves(env, algorithm, keys, dict(hyper), steps, points, episodes)
    everywhere = lambda x: jnp.full(len(keys), x, jnp.float32)
    total = points * steps
    return {
        "score": returns[:, 1:].mean(1),
        "final": returns[:, -1],
        "untrained": returns[:, 0],
        "env_steps": everywhere(algorithm.initial_env_steps + total * algorithm.env_steps),
        "gradient_steps": everywhere(total * gradient_steps(trial)),
    }


@functools.partial(jax.jit, static_argnums=(0, 1, 4, 5, 6))
def _curves(env, algorithm, keys, hyper, steps, points, episodes):
    def one(key, hyper):
        train_key, evaluation_key = jax.random.split(key)

        def part(run, now):
            number, key = now
            learn = lambda run: train(algorithm, run, steps)[0]
            run = jax.lax.cond(number > 0, learn, lambda run: run, run)
            return run, evaluate(env, algorithm.policy(run.state), key, episodes).returns.mean()

        run = start(algorithm, train_key, hyper)
        moments = jnp.arange(points + 1), jax.random.split(evaluation_key, points + 1)
        return jax.lax.scan(part, run, moments)[1]

    return jax.vmap(one)(keys, hyper)


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


# ------------------------------------------------------------------------------- many runs


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
    return {name: np.asarray(values, np.float64) for name, values in found.items()}
