"""Looks at the results on tuning seeds, before the reported seeds are spent.

Each look gives one sentence. Some that find something wrong stop the attempt as untestable: a claim
that cannot hold or cannot fail, all sides at the ceiling, a side that has to learn and does not,
and far too few seeds for the effect. The others warn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.evidence.clauses import Values, nearest, places, sides
from experiments.evidence.declare import Arena, Claim, Clause
from experiments.evidence.estimators import MIN_SEEDS, MOST_SEEDS, effects, modes, seeds_needed
from jaxrl.evaluation.statistics import mean_interval

NEAR = 0.05  # part of a metric's range
HOPELESS = 4  # times the seeds there are


@dataclasses.dataclass(frozen=True)
class Look:
    """One look.

    ok: whether all is well. said: what was found, in one sentence. stops: whether it stops the
    attempt as untestable.
    """

    name: str
    ok: bool
    said: str
    stops: bool = False


def look(
    claim: Claim,
    clauses: Sequence[Clause],
    environments: Sequence[Arena],
    values: Values,
    seeds: int,
    level: float,
) -> tuple[list[dict[str, Any]], str]:
    """Return all looks, as a record has them, and why the claim is untestable; empty if it is not.

    values: [environment][side][metric][tuning seed] of each side at its best setting.
    seeds, level: number of reported seeds, and their confidence (`history.confidence`).
    """
    looks = []
    split = sum(max(1, len(c.environments)) for c in clauses if not c.of_mechanism)
    for clause in clauses:
        at = 1 - (1 - level) / (1 if clause.of_mechanism else split)
        for label, where in places(clause, environments):
            one, other = sides(claim, values, where, clause, scaled=not label)
            low, high = (where[0].low, where[0].high) if label else (0.0, 1.0)
            name = label or "the mean over environments"
            more = claim.metric.more_is_better
            looks.append(possible(clause, name, other if more else -other, low, high, more))
            looks.append(power(clause, name, one - other, seeds, at))
    for environment in environments:
        here = [c for c in clauses if not c.environments or environment.label in c.environments]
        looks += _of_environment(claim, here, environment, values[environment.label])
    looks = list(dict.fromkeys(looks))
    untestable = " ".join(one.said for one in looks if one.stops and not one.ok)
    return [dataclasses.asdict(one) for one in looks], untestable


def _of_environment(
    claim: Claim, clauses: Sequence[Clause], environment: Arena, values
) -> list[Look]:
    sign = 1 if claim.metric.more_is_better else -1
    top = environment.high if claim.metric.more_is_better else environment.low
    looks = []
    for metric in sorted({c.metric or claim.metric.name for c in clauses}):
        about = [c for c in clauses if (c.metric or claim.metric.name) == metric]
        named = sorted({side for c in about for side in (c.one, c.other)})
        reached = {side: values[side][metric] for side in named}
        looks.append(ceiling(environment.label, reached, top, environment.high - environment.low))
        looks += [
            look for side in named if (look := two_modes(side, environment.label, reached[side]))
        ]
    for side in sorted({side for c in clauses for side in (c.one, c.other)}):
        if "untrained" in values[side]:
            end = values[side]["final" if "final" in values[side] else claim.metric.name]
            gain = sign * np.subtract(end, values[side]["untrained"])
            required = any(side in must_learn(c) for c in clauses)
            looks.append(
                floor(side, environment.label, gain, environment.high - environment.low, required)
            )
    return looks


def must_learn(clause: Clause) -> tuple[str, ...]:
    """Return the sides that have to learn for a clause to mean something.

    For "better" that is the better side alone, since the other may be unable to learn. Otherwise it
    is both: two sides that learn nothing are equal.
    """
    return (clause.one,) if clause.kind == "better" else (clause.one, clause.other)


def possible(
    clause: Clause,
    where: str,
    other: ArrayLike,
    low: float,
    high: float,
    more_is_better: bool = True,
) -> Look:
    """Look whether a clause may hold and may fail, wherever `one` lies between `low` and `high`.

    `other` is taken to lie at the mean of its values [seeds]; if that is outside of the range, the
    look warns.
    """
    what = f"'{dataclasses.replace(clause, environments=())}' in {where}"
    mean = float(np.asarray(other, np.float64).mean())
    room = f"{clause.other} is at {mean:.3g} of a range from {low:g} to {high:g}"
    slack = 1e-9 * (high - low)
    if not low - slack <= mean <= high + slack:
        return Look("possible", False, f"The range of {what} is wrong: {room}.")
    up, down = (high - mean, mean - low) if more_is_better else (mean - low, high - mean)
    up, down = up - slack, down - slack
    if clause.kind == "better" and up <= clause.margin:
        return Look("possible", False, f"{what} cannot hold: {room}.", True)
    if clause.kind != "better" and max(down, up if clause.kind == "equal" else 0) <= clause.margin:
        return Look("possible", False, f"{what} cannot fail: {room}.", True)
    return Look("possible", True, f"{what} may hold and may fail: {room}.")


def ceiling(where: str, reached: Mapping[str, ArrayLike], top: float, span: float) -> Look:
    """Look whether all sides {name: [seeds]} are at the ceiling, so that none can be better.

    That is, all have a mean within a twentieth of the metric's range `span` from its best value
    `top`.
    """
    means = {side: float(np.asarray(x, np.float64).mean()) for side, x in reached.items()}
    said = ", ".join(f"{side} {mean:.3g}" for side, mean in means.items())
    if all(abs(top - mean) <= NEAR * span for mean in means.values()):
        return Look(
            "ceiling", False, f"All sides are at the ceiling of {top:g} in {where}: {said}.", True
        )
    return Look("ceiling", True, f"There is room below the ceiling of {top:g} in {where}: {said}.")


def floor(side: str, where: str, gain: ArrayLike, span: float, required: bool) -> Look:
    """Look whether a side has learned.

    It has if its `gain` over its own untrained policy [seeds] is a twentieth of the range `span` on
    every seed, or on average a hundredth and above 0 by a one-sided t-test at 5 %. Only a side that
    is `required` to learn stops the attempt.
    """
    gain = np.asarray(gain, np.float64)
    mean, low, _ = mean_interval(gain, 0.9)
    if np.all(gain >= NEAR * span) or (mean >= span / 100 and low > 0):
        return Look("floor", True, f"{side} learns in {where}: it gains {mean:.3g}.")
    said = f"{side} does not learn in {where}: it gains {mean:.3g} over its untrained policy."
    return Look("floor", False, said, required)


def power(clause: Clause, where: str, differences: ArrayLike, seeds: int, level: float) -> Look:
    """Look whether `seeds` are enough for an effect as large as that of the tuning seeds.

    Compares the distance of the mean of `differences` [tuning seeds] from where the verdict changes
    with the smallest distance that their spread lets so many seeds find with a probability of 0.8.
    Too few seeds warn. As the spread of a few seeds is uncertain, they stop the attempt only if it
    takes more than four times as many, that is, if the effect is less than half of what could be
    found.
    """
    differences = np.asarray(differences, np.float64)
    what = f"'{dataclasses.replace(clause, environments=())}' in {where}"
    if len(differences) < 2:
        return Look("power", True, f"A single tuning seed shows no spread for {what}.")
    mean = float(differences.mean())
    margin = nearest(clause, mean)
    smallest = float(effects(level)[max(seeds, MIN_SEEDS) - MIN_SEEDS] * differences.std(ddof=1))
    said = (
        f"{seeds} seeds find a distance of {smallest:.2g} from the margin of {what}, and it is "
        f"{abs(mean - margin):.2g}"
    )
    takes = seeds_needed(differences, margin, level) or math.inf
    if seeds >= takes:
        return Look("power", True, f"{said}.")
    more = f"about {takes}" if takes < MOST_SEEDS else f"more than {MOST_SEEDS:,}"
    return Look("power", False, f"{said}: it takes {more} seeds.", takes > HOPELESS * seeds)


def two_modes(side: str, where: str, values: ArrayLike) -> Look | None:
    """Warn if the `values` [seeds] of a side end in two groups."""
    found = modes(values)
    if not found:
        return None
    said = (
        f"{side} ends in two groups in {where}: {found.above} of {len(np.asarray(values))} seeds "
        f"near {found.high:.3g}, the others near {found.low:.3g}."
    )
    return Look("modes", False, said)


def value_beyond(values: Sequence[float], best: float) -> float | None:
    """Return the value that widens a grid whose `best` value is at one of its ends.

    One step further by the ratio of the last two values; if that would take values between 0 and 1
    out of this range, by the ratio of their distances to 1. None if the best is inside or is the
    only value, or if there is nothing further (0, or a step back to a value of the grid).
    """
    grid = sorted(values)
    if len(grid) < 2 or best not in (grid[0], grid[-1]) or best <= 0:
        return None
    neighbor = grid[1] if best == grid[0] else grid[-2]
    if neighbor <= 0:
        return None
    further = best * best / neighbor
    if further >= 1 and grid[0] > 0 and grid[-1] < 1:
        further = 1 - (1 - best) ** 2 / (1 - neighbor)
    if all(isinstance(x, int) for x in grid):
        further = round(further)
    return None if further in (0, *grid) else float(f"{further:.6g}")


def edge(
    what: str, grid: Sequence[float], tried: Sequence[float], best: float, wrong: str = ""
) -> Look:
    """Look whether the `best` value of a hyperparameter lies inside of all `tried`.

    what: the hyperparameter, its side and environment. grid: the values that were declared. wrong:
    why the grid could not be widened.
    """
    values = ", ".join(f"{x:g}" for x in sorted(tried))
    if len(tried) < 2 or best not in (min(tried), max(tried)):
        return Look("edge", True, f"{what} is best at {best:g}, of {values}.")
    more = "" if len(tried) == len(grid) else ", although its grid was widened"
    said = f"{what} is best at {best:g}, at an end of {values}{more}{wrong and ': '}{wrong}."
    return Look("edge", False, said)
