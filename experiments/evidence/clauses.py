"""Results of clauses from the values of seeds.

Values are paired: seed i of every side shares its key. A clause is read off a two-sided confidence
interval of the paired difference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from experiments.evidence.declare import Arena, Claim, Clause, Metric
from experiments.evidence.estimators import (
    MIN_SEEDS,
    difference,
    estimator_for,
    seeds_needed,
)
from experiments.evidence.history import FAILS, HOLDS, INCONCLUSIVE
from jaxrl.core.errors import unknown

# environment -> side -> metric -> [seeds]
Values = Mapping[str, Mapping[str, Mapping[str, ArrayLike]]]


@dataclasses.dataclass(frozen=True)
class Compared:
    """The part of a claim by which recorded values are judged."""

    metric: Metric


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a clause in an environment.

    environment: "" if pooled.
    value, low, high: by how much `one` is better than `other`, in units of the margin's metric;
        positive is better also where less of the metric is better.
    share: of a clause about the mechanism, the part of the effect that switching it off costs. None
        if there is no effect to compare with.
    seeds_needed, hours_needed: of the next try, to decide what is inconclusive. None if nothing
        would decide it, or if it is decided.
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
    share: float | None = None

    def __str__(self) -> str:
        """Return the result as a sentence without its end."""
        where = f" in {self.environment}" if self.environment else ""
        outcome = "stays open" if self.verdict == INCONCLUSIVE else self.verdict
        effect = interval_text(self.value, self.low, self.high)
        return f"'{self.text}'{where} {outcome}: {effect}{self.though}"

    @property
    def though(self) -> str:
        """Return what a clause that holds within its margin passes over, to end a sentence."""
        if self.kind == "better" or self.verdict != HOLDS or self.low <= 0 <= self.high:
            return ""
        if self.value < 0:
            return f", though it is worse by {abs(self.value):.3g}"
        return f", though it is better by {self.value:.3g}" if self.kind == "equal" else ""


def interval_text(*interval: float) -> str:
    """Return an estimate with its interval in words; rounding errors are 0."""
    value, low, high = (f"{round(x, 9) + 0.0:.3g}" for x in interval)
    return f"{value} ({low} to {high})"


def decide(kind: str, margin: float, low: float, high: float) -> str:
    """Return the verdict of a clause whose paired difference has the interval [low, high]."""
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
    """Return the result of a clause from the values [seeds] of its two sides; more is better.

    "better" holds if the interval at the confidence `level` lies above the margin and fails if it
    lies at or below it; "not worse" likewise with minus the margin; "equal" holds if the interval
    lies within the margin on both sides of 0 and fails if it lies outside. Anything else is
    inconclusive, and so are fewer than 5 seeds.

    estimator: as in `difference`, which also uses `span`; empty: chosen by the values.
    next_level: level at which `seeds_needed` would be judged; 0: `level`.
    hours_per_seed: time of one seed of all sides, for `hours_needed`.
    """
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    estimator = estimator or estimator_for(one, other)
    value, low, high = difference(one, other, level, estimator, span)
    verdict, seeds = INCONCLUSIVE, None
    if len(one) >= MIN_SEEDS:
        verdict = decide(clause.kind, clause.margin, low, high)
    if verdict == INCONCLUSIVE and len(one) > 1:
        seeds = seeds_needed(one - other, nearest(clause, value), next_level or level)
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
    """Return the difference nearest to `value` at which the verdict changes."""
    if clause.kind == "equal":
        return math.copysign(clause.margin, value)
    return clause.margin if clause.kind == "better" else -clause.margin


def places(clause: Clause, environments: Sequence[Arena]) -> list[tuple[str, list[Arena]]]:
    """Return where a clause is judged, by name.

    In each of its environments, or in the only one that there is, in units of its metric; otherwise
    under the name "" in all of them, pooled on their common scale.
    """
    known = {environment.label: environment for environment in environments}
    named = clause.environments or (tuple(known) if len(known) == 1 else ())
    return [(label, [known[label]]) for label in named] or [("", list(environments))]


def sides(
    claim: Claim | Compared,
    values: Values,
    environments: Sequence[Arena],
    clause: Clause,
    scaled: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of both sides of a clause, float64 [seeds], so that more is better.

    For each seed, the mean over `environments`; if `scaled`, each on its scale from 0 to 1. Raises
    `UserError` for a metric that was not measured.
    """
    metric = clause.metric or claim.metric.name

    def side(name: str) -> np.ndarray:
        return np.mean(
            [
                of_environment(environment, values[environment.label][name])
                for environment in environments
            ],
            0,
        )

    def of_environment(environment: Arena, measured: Mapping[str, ArrayLike]) -> np.ndarray:
        if metric not in measured:
            raise unknown("metric", metric, measured)
        x = np.asarray(measured[metric], np.float64)
        if scaled:
            x = (x - environment.low) / (environment.high - environment.low)
        return x if claim.metric.more_is_better else -x

    return side(clause.one), side(clause.other)
