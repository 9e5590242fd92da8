"""Points that Optuna proposes (extra `optuna`), as a pure function of points, scores and a seed.

A study is made anew for each batch of points, from those before and their scores. So a sweep needs
no storage of Optuna's, and a resumed one continues from its own folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.core import plugins
from jaxrl.sweeps.points import Point, Values

AGAIN = 10  # tries to propose a point that is not there yet


def load() -> Any:
    """Import Optuna. Raises `UserError` if it is not installed."""
    optuna = plugins.package("optuna", "optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def propose(
    varied: Mapping[str, Values],
    points: Sequence[Point],
    scores: Sequence[float],
    *,
    count: int,
    seed: int,
) -> list[Point]:
    """Return the next `count` points by the tree-structured Parzen estimator (Bergstra et al. 2011,
    "Algorithms for Hyper-Parameter Optimization"), as Optuna implements it.

    Points of one batch keep apart from each other, since those without a score count as bad. Points
    are drawn at random until ten have a score.

    points, scores: all points so far, and the return of each; NaN where a seed diverged.
    """
    optuna = load()
    distributions = {name: _distribution(optuna, values) for name, values in varied.items()}
    state = np.random.SeedSequence([seed, len(points)]).generate_state(1)
    sampler = optuna.samplers.TPESampler(seed=int(state[0]), constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for point, score in zip(points, scores, strict=True):
        known = {name: _parameter(varied[name], point[name]) for name in varied}
        # A point that diverged has no value; the estimator places it behind all others.
        result = {"value": score} if math.isfinite(score) else {"state": _worst_state(optuna)}
        study.add_trial(
            optuna.trial.create_trial(params=known, distributions=distributions, **result)
        )
    found: list[Point] = []
    for _ in range(count):
        point = {}
        for _ in range(AGAIN):
            trial = study.ask(distributions)
            point = {name: _value(varied[name], trial.params[name]) for name in varied}
            if point not in found and point not in points:
                break
        found.append(point)
    return found


def _worst_state(optuna: Any) -> Any:
    return optuna.trial.TrialState.PRUNED


def _distribution(optuna: Any, values: Values) -> Any:
    """Return the distribution of a setting: of a list, that of the places in `_in_order`."""
    kinds = optuna.distributions
    if not values.listed:
        return kinds.FloatDistribution(values.low, values.high, log=values.log)
    if _is_ordered(values):
        return kinds.IntDistribution(0, len(values.listed) - 1)
    return kinds.CategoricalDistribution(range(len(values.listed)))


def _parameter(values: Values, value: Any) -> Any:
    return _in_order(values).index(value) if values.listed else value


def _value(values: Values, parameter: Any) -> Any:
    return _in_order(values)[parameter] if values.listed else values.clip(parameter)


def _in_order(values: Values) -> list[Any]:
    return sorted(values.listed) if _is_ordered(values) else list(values.listed)


def _is_ordered(values: Values) -> bool:
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in values.listed)
