"""A clause held against the values of seeds.

Values are paired: seed i of every side shares its key. A clause is read off a two-sided confidence
interval of the paired difference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from experiments.evidence.declare import Claim, Clause, World
from experiments.evidence.estimators import MIN_SEEDS, SHARE, difference, estimator_for, needed
from experiments.evidence.history import FAILS, HOLDS, INCONCLUSIVE
from jaxrl.core.errors import unknown

Values = Mapping[
    str, Mapping[str, Mapping[str, ArrayLike]]
]  # environment -> side -> metric -> [seeds]


@dataclasses.dataclass(frozen=True)
class Result:
    """What came out of a clause in a `environment` ("" where pooled).

    value, low, high: by how much `one` is better than `other`, in the units of `margin` and also
        where less is better.
    seeds_needed, hours_needed: with which the next try would decide what is inconclusive; None
        where nothing would, or nothing is to be decided.
    """

    text: str
    kind: str
    metric: str
    environment: str
    margin: float
    value: float
    low: float
    high: float
    verdict: str
    seeds_needed: int | None
    hours_needed: float | None
    estimator: str
    of_mechanism: bool

    def __str__(self) -> str:
        """What was found, as a sentence without its end."""
        where = f" in {self.environment}" if self.environment else ""
        outcome = "stays open" if self.verdict == INCONCLUSIVE else self.verdict
        shares = " in shares of seeds, which end in two groups" if self.estimator == SHARE else ""
        return f"'{self.text}'{where} {outcome}: {shown(self.value, self.low, self.high)}{shares}"


def shown(*interval: float) -> str:
    """An estimate and its interval in words; rounding errors are 0."""
    value, low, high = (f"{round(x, 9) + 0.0:.3g}" for x in interval)
    return f"{value} ({low} to {high})"


def decide(kind: str, margin: float, low: float, high: float) -> str:
    """The verdict of a clause whose paired difference has the interval from `low` to `high`."""
    bottom = margin if kind == "better" else -margin
    top = margin if kind == "equal" else math.inf
    if bottom < low and high < top:
        return HOLDS
    return FAILS if high <= bottom or low >= top else INCONCLUSIVE


def clause_result(
    clause: Clause,
    one: ArrayLike,
    other: ArrayLike,
    level: float,
    estimator: str = "",
    *,
    span: float = 1.0,
    next_level: float = 0.0,
    hours_per_seed: float = 0.0,
) -> Result:
    """A clause held against the values [seeds] of its two sides, of which more is better.

    "better" holds if the interval at the confidence `level` lies above the margin and fails if it
    lies at or below it; "not worse" likewise with minus the margin; "equal" holds if the interval
    lies within the margin on both sides of 0 and fails if it lies outside. All else, and what has
    fewer than 5 seeds, is inconclusive.

    estimator: as in `difference`, which also uses `span`; chosen by the values unless said.
    next_level: at which `seeds_needed` would be judged; `level` unless said.
    hours_per_seed: what one seed of all sides took, for `hours_needed`.
    """
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    estimator = estimator or estimator_for(one, other)
    value, low, high = difference(one, other, level, estimator, span)
    verdict, seeds = INCONCLUSIVE, None
    if len(one) >= MIN_SEEDS:
        verdict = decide(clause.kind, clause.margin, low, high)
    if verdict == INCONCLUSIVE and len(one) > 1:
        seeds = needed(one - other, nearest(clause, value), next_level or level)
    return Result(
        text=str(dataclasses.replace(clause, environments=())),
        kind=clause.kind,
        metric=clause.metric,
        environment="",
        margin=clause.margin,
        value=value,
        low=low,
        high=high,
        verdict=verdict,
        seeds_needed=seeds,
        hours_needed=seeds * hours_per_seed if seeds and hours_per_seed else None,
        estimator=estimator,
        of_mechanism=clause.of_mechanism,
    )


def nearest(clause: Clause, value: float) -> float:
    """The difference at which the verdict turns that lies nearest to `value`."""
    if clause.kind == "equal":
        return math.copysign(clause.margin, value)
    return clause.margin if clause.kind == "better" else -clause.margin


def places(clause: Clause, environments: Sequence[World]) -> list[tuple[str, list[World]]]:
    """Where a clause is judged: in each of its environments or in the only one that there is, in
    the units of its metric; else under the name "" in all of them, pooled on their common scale."""
    known = {environment.label: environment for environment in environments}
    named = clause.environments or (tuple(known) if len(known) == 1 else ())
    return [(label, [known[label]]) for label in named] or [("", list(environments))]


def sides(
    claim: Claim, values: Values, environments: Sequence[World], clause: Clause, scaled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """What both sides of a clause reached, so that more is better, float64 [seeds]: per seed the
    mean over `environments`; `scaled`, each on its scale from 0 to 1. Raises `UserError` for what
    was not measured."""
    metric = clause.metric or claim.metric.name

    def side(name: str) -> np.ndarray:
        return np.mean(
            [
                of_environment(environment, values[environment.label][name])
                for environment in environments
            ],
            0,
        )

    def of_environment(environment: World, measured: Mapping[str, ArrayLike]) -> np.ndarray:
        if metric not in measured:
            raise unknown("metric", metric, measured)
        x = np.asarray(measured[metric], np.float64)
        if scaled:
            x = (x - environment.low) / (environment.high - environment.low)
        return x if claim.metric.more_is_better else -x

    return side(clause.one), side(clause.other)
