"""Verdict of an attempt from the results of its clauses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.evidence import records
from experiments.evidence.clauses import (
    Compared,
    Result,
    Values,
    clause_result,
    decide,
    interval_text,
    places,
    sides,
)
from experiments.evidence.declare import Arena, Claim, Clause, Exact, Metric
from experiments.evidence.estimators import MIN_SEEDS, difference, estimator_for
from experiments.evidence.history import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    confidence,
    level_of_look,
    next_confidence,
    tries,
)
from jaxrl.core.errors import UserError
from jaxrl.evaluation.statistics import Interval

PART_OF_MECHANISM = 0.25  # of the effect, that switching the mechanism off must cost


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A verdict, why in one sentence, and the results of the clauses; an `Exact` has none."""

    verdict: str
    why: str
    clauses: tuple[Result, ...] = ()


def judge(
    claim: Claim | Compared,
    clauses: Sequence[Clause],
    environments: Sequence[Arena],
    values: Values,
    level: float,
    hours_per_seed: float = 0.0,
) -> Judgement:
    """Return the verdict of a claim's clauses from the values of reported seeds.

    Every clause must hold in every one of its environments, and one that does not hold refutes the
    claim; the error 1 - `level` is split among them evenly (Bonferroni). A clause about the
    mechanism can only make a claim that holds inconclusive, so it takes no part in the split; it
    does so too if switching the mechanism off costs less than a quarter of the effect. A pooled
    clause that holds though its environments disagree (`_disagree`) is inconclusive as well, since
    its mean says nothing about any of them.

    level: `history.confidence` of the try. hours_per_seed: time of one seed of all sides.
    Raises `UserError` if only clauses about the mechanism are left, or if a metric was not
    measured.
    """
    split = sum(max(1, len(c.environments)) for c in clauses if not c.of_mechanism)
    if not split:
        named = ", ".join(environment.label for environment in environments)
        raise UserError(f"No clause of the claim is about {named}.")
    results, warnings = [], []
    for clause in clauses:
        share = 1 if clause.of_mechanism else split
        at, after = (1 - (1 - x) / share for x in (level, next_confidence(level)))
        for label, where in places(clause, environments):
            one, other = sides(claim, values, where, clause, scaled=not label)
            result = clause_result(
                clause,
                one,
                other,
                at,
                claim.metric.estimator,
                span=where[0].high - where[0].low if label else 1.0,
                next_level=after,
                hours_per_seed=hours_per_seed,
            )
            if not label and (hidden := _disagree(claim, clause, environments, values, at)):
                warnings.append(hidden)
                if result.verdict == HOLDS:
                    result = dataclasses.replace(result, verdict=INCONCLUSIVE)
            metric = clause.metric or claim.metric.name
            results.append(dataclasses.replace(result, environment=label, metric=metric))
    results = [_against_effect(r, results, clauses) for r in results]
    verdict, why = _together(results, len(one))
    return Judgement(verdict, "; ".join([why, *warnings]) + ".", tuple(results))


def judge_record(
    record: Mapping[str, Any], known: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return what today's rules say of an attempt that ended, as a record has it.

    known: all records of the claim; the attempt is judged at the level that its try has by them.
    None for an equality, and where no seed was reported. (Equalities are judged as ever.)
    """
    if record["kind"] == "exact" or not record["clauses"]:
        return None
    rows = [records.with_names(r, known) for r in records.with_judgements(known)]
    record = next(
        r for r in rows if r.get("event") == "ended" and r["attempt"] == record["attempt"]
    )
    declared = record["declared"]
    arenas = (record["budget"] == "large" and declared["large"]) or declared["environments"]
    claim = Compared(Metric(**declared["metric"]))
    clauses = [
        Clause(**{**c, "environments": tuple(c["environments"])}) for c in declared["clauses"]
    ]
    level = confidence(tries(rows, record["attempt"]))
    at = level_of_look(level, record.get("groups", 1))
    values = {
        label: {
            side: {m: [math.nan if x is None else x for x in row] for m, row in metrics.items()}
            for side, metrics in sides.items()
        }
        for label, sides in record["values"].items()
    }
    found = judge(claim, clauses, [Arena(**a) for a in arenas], values, at)
    return {
        "rules": records.RULES,
        "level": level,
        "verdict": found.verdict,
        "why": found.why,
        "clauses": [dataclasses.asdict(result) for result in found.clauses],
    }


def _disagree(
    claim: Claim | Compared, clause: Clause, environments, values: Values, level: float
) -> str:
    """Return what a mean over environments hides, in a sentence without its end; empty if nothing.

    In some of them the opposite of the clause is true (`one` is worse, or the difference exceeds
    the margin), and not in all of them alike. The error is split among the environments.
    """
    level = 1 - (1 - level) / len(environments)
    effects = {}
    for environment in environments:
        one, other = sides(claim, values, [environment], clause, scaled=True)
        estimator = claim.metric.estimator or estimator_for(one, other)
        effects[environment.label] = difference(one, other, level, estimator)

    def contrary(i: Interval) -> bool:
        if clause.kind == "better":
            return i.high < 0
        return decide(clause.kind, clause.margin, i.low, i.high) == FAILS

    against = [contrary(i) for i in effects.values()]
    alike = all(against) and len({i.estimate > 0 for i in effects.values()}) == 1
    if alike or not any(against):
        return ""
    each = ", ".join(f"{interval_text(*i)} in {label}" for label, i in effects.items())
    return f"the mean over environments hides that they disagree about '{clause}': {each}"


def _against_effect(result: Result, results: Sequence[Result], clauses) -> Result:
    """Return a result of the mechanism compared with the effect, any other as it is.

    The effect is the smallest by which the same side is better than another, in the same place and
    metric.
    """
    sides_of = {str(dataclasses.replace(c, environments=())): (c.one, c.other) for c in clauses}
    effects = [
        r.value
        for r in results
        if not r.of_mechanism
        and r.kind == "better"
        and (r.environment, r.metric) == (result.environment, result.metric)
        and sides_of[r.text][0] == sides_of[result.text][0]
        and r.value > 0
    ]
    if not (result.of_mechanism and result.kind == "better" and effects):
        return result
    share = result.value / min(effects)
    shown = share >= PART_OF_MECHANISM or result.verdict != HOLDS
    return dataclasses.replace(
        result, share=share, verdict=result.verdict if shown else INCONCLUSIVE
    )


def _together(results: Sequence[Result], seeds: int) -> tuple[str, str]:
    """Return the verdict of all clauses, and why, without the end of the sentence."""
    main = [r for r in results if not r.of_mechanism]
    failed = [r for r in main if r.verdict == FAILS]
    if failed:
        return FAILS, str(failed[0])
    if seeds < MIN_SEEDS:
        return INCONCLUSIVE, f"{seeds} seeds give no verdict, it takes at least {MIN_SEEDS}"
    undecided = [r for r in main if r.verdict != HOLDS]
    if undecided:
        longest = max(undecided, key=lambda r: r.seeds_needed or 0)
        return INCONCLUSIVE, f"{longest}{_to_decide(longest)}"
    costless = [r for r in results if r.verdict != HOLDS]
    weak = [r for r in costless if r.share is not None and 0 <= r.share < PART_OF_MECHANISM]
    if weak:
        return INCONCLUSIVE, (
            f"Mechanism not shown: switching it off costs {weak[0].share:.2g} of the effect, and a "
            f"quarter is asked for ({weak[0]})"
        )
    if costless:
        return INCONCLUSIVE, (
            f"The claim holds, but its effect may not be due to the mechanism, as {costless[0]}"
            f"{_to_decide(costless[0])}"
        )
    return HOLDS, "; ".join(map(str, results))


def _to_decide(result: Result) -> str:
    """Return how many seeds would decide, as the end of a sentence."""
    if result.seeds_needed is None:
        return ""
    hours = f" in about {result.hours_needed:.1f} hours" if result.hours_needed else ""
    return f"; {result.seeds_needed} seeds{hours} would probably decide it"


def judge_exact(
    claim: Exact, errors: Mapping[str, ArrayLike], planted: Mapping[str, ArrayLike]
) -> Judgement:
    """Return the verdict of an equality.

    It does not hold if one of `errors`, {name: [seeds]}, exceeds the tolerance on one seed or is
    not finite. It is inconclusive if one of the `planted` mistakes, {name: largest error [seeds]},
    goes unnoticed on a seed, and with fewer than 5 seeds.
    """
    for name, x in errors.items():
        wrong = np.flatnonzero(~(np.asarray(x, np.float64) <= claim.tolerance))
        if len(wrong):
            return Judgement(
                FAILS,
                f"'{name}' exceeds {claim.tolerance:g} on {len(wrong)} of {np.size(x)} seeds; "
                f"on the first of them it is {np.asarray(x)[wrong[0]]:.3g}.",
            )
    for name, x in planted.items():
        if not np.all(np.asarray(x) > claim.effect):
            return Judgement(
                INCONCLUSIVE,
                f"The planted mistake '{name}' goes unnoticed: it changes a seed by only "
                f"{np.min(x):.3g}, not by more than {claim.effect:g}.",
            )
    seeds = min(map(np.size, errors.values()))
    if seeds < MIN_SEEDS:
        return Judgement(INCONCLUSIVE, f"{seeds} seeds give no verdict, it takes {MIN_SEEDS}.")
    largest = max(np.max(x) for x in errors.values())
    return Judgement(
        HOLDS, f"No error exceeds {largest:.1g}, and every planted mistake is noticed."
    )
