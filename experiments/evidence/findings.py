"""Findings: everything known of a claim, from its declaration and its records.

Pages are written from them. This module also puts clauses and their effects into words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from experiments.evidence import history, scale
from experiments.evidence.digests import as_json, revisions
from experiments.evidence.history import Standing
from experiments.evidence.records import with_names
from experiments.evidence.scale import Scale
from experiments.evidence.words import number
from jaxrl.algorithms import families
from jaxrl.core.errors import UserError
from jaxrl.evaluation.statistics import score_interval

Record = Mapping[str, Any]
VERDICTS = ("holds", "does not hold", "inconclusive", "untestable", "not run")
MARKS = {
    "possible": "one outcome",
    "ceiling": "ceiling",
    "floor": "floor",
    "power": "too few seeds",
    "edge": "edge",
    "modes": "two modes",
    "budget": "over its minutes",
}


class Findings(NamedTuple):
    """A claim with all that came out.

    declared: its declaration as plain data. standing: the verdict of all attempts together. latest:
    the latest record that ended; None without one. records: those of attempts in the harness,
    oldest first. events: the same, and records of renamings. old: records from before the harness.
    stale: how the latest result differs from what would run now; empty if it does not.
    """

    id: str
    family: str
    declared: Mapping[str, Any]
    standing: Standing
    latest: Record | None
    records: Sequence[Record]
    events: Sequence[Record]
    old: Sequence[Record]
    stale: str
    scales: Mapping[str, Scale] = {}
    warnings: Sequence[str] = ()

    @property
    def is_exact(self) -> bool:
        return "tolerance" in self.declared

    @property
    def file(self) -> str:
        """The path of the claim from the root."""
        return f"experiments/claims/{self.family}/{self.id.replace('-', '_')}.py"

    @property
    def clauses(self) -> Sequence[Record]:
        return self.latest["clauses"] if self.latest and not self.is_exact else ()


def gather(
    claims: Iterable[tuple[str, str, Any]],
    records: Iterable[Record],
    stale: Mapping[str, str],
    standing: Callable[[Sequence[Record]], Standing],
    best: Sequence[Record] = (),
) -> list[Findings]:
    """Return the findings of claims, by family and id.

    claims: (id, family, declaration or its dict) each. records: of all claims, oldest first, as
    `records.with_judgements` gives them. stale: id -> how its latest record is stale, in a
    sentence. standing: returns the verdict of records. best: rows of the table of best results.
    Raises `UserError` if an id is taken by the page of a family or of failures.
    """
    claims, records = list(claims), list(records)
    taken = {"failures", *families.NAMES}
    found = []
    for id, family, declaration in sorted(claims, key=lambda c: (families.NAMES.index(c[1]), c[0])):
        if id in taken:
            raise UserError(f"The claim '{id}' needs another id: a page has that name.")
        taken.add(id)
        mine = [r for r in records if r["id"] == id]
        events = [r for r in mine if r.get("format") and r.get("budget") != "tiny"]
        attempts = [r for r in events if r["event"] in ("begun", "ended")]
        ended = [r for r in attempts if r["event"] == "ended" and r["budget"] != history.PILOT]
        latest = ended[-1] if ended else None
        found.append(
            Findings(
                id,
                family,
                as_json(declaration),
                standing(attempts) if ended else Standing("not run", ""),
                latest,
                attempts,
                events,
                [r for r in mine if not r.get("format")],
                stale.get(id, ""),
                *_on_scales(latest, mine, best),
            )
        )
    return found


def _on_scales(
    latest: Record | None, mine: Sequence[Record], best: Sequence[Record]
) -> tuple[dict[str, Scale], list[str]]:
    """Return the scale of each arena of a record, and what is to be said of its sides."""
    if not latest or latest["kind"] == "exact" or latest["declared"]["measure"] is not None:
        return {}, []
    declared = with_names(latest["declared"], mine)
    arenas = (latest["budget"] == "large" and declared["large"]) or declared["environments"]
    scales = {a["name"] or a["env"]: scale.scale_of(best, a) for a in arenas}
    clauses = [SimpleNamespace(**clause) for clause in declared["clauses"]]
    said = scale.warnings(best, arenas, clauses, with_names(latest["values"], mine))
    return {label: found for label, found in scales.items() if found}, said


# ------------------------------------------------------------------------------- outcomes


def marks(claim: Findings) -> list[str]:
    """Return what a reader must know beside the verdict, in a word or two each."""
    latest, found = claim.latest, []
    if latest:
        found += ["replicated"] if claim.standing.replicated else []
        found += ["redesigned"] if claim.standing.is_redesigned else []
        weak = [w.startswith("The baseline") for w in claim.warnings]
        found += ["weak baseline"] if any(weak) else []
        found += ["below random play"] if not all(weak) else []
        found += ["stale"] if claim.stale else []
        found += [mark(look) for look in latest["looks"] if not look["ok"]]
        found += ["large"] if latest["budget"] == "large" else []
    found += ["unfinished"] if open_attempt(claim) else []
    found += ["run before the harness only"] if claim.old and not claim.records else []
    return list(dict.fromkeys(found))


def mark(look: Record) -> str:
    """Return a word or two for a look that found something wrong."""
    name: str = look["name"]
    return MARKS.get(name, name)


def open_attempt(claim: Findings) -> Record | None:
    """Return the latest attempt if it began and has not ended."""
    latest = claim.records[-1] if claim.records else None
    return latest if latest and latest["event"] == "begun" else None


def changes(claim: Findings, record: Record) -> list[str]:
    """Return what was revised for an attempt, in sentences; none if nothing was."""
    before = [r for r in claim.records if r["attempt"] < record["attempt"]]
    if not record["changed"] or not before:
        return list(record["changed"])
    old, new = (with_names(r["declared"], claim.events) for r in (before[-1], record))
    return revisions(old, new)


def deciding(claim: Findings) -> Record | None:
    """Return the clause nearest to failing among those with the worst outcome."""

    def room(clause: Record) -> tuple:
        numbers = [clause[name] for name in ("low", "high", "margin")]
        low, high, margin = (math.nan if x is None else x for x in numbers)
        unit = margin or (high - low) / 2 or 1.0
        bottom = margin if clause["kind"] == "better" else -margin
        top = margin if clause["kind"] == "equal" else math.inf
        ranks = ("does not hold", "inconclusive", "holds")
        of_mechanism = clause.get("of_mechanism", False)
        worst = ranks.index(clause["verdict"]) if clause["verdict"] in ranks else 0
        failed = claim.standing.verdict == "does not hold"
        nearest = min((low - bottom) / unit, (top - high) / unit)
        return of_mechanism and failed, worst, of_mechanism, nearest

    return min(claim.clauses, key=room, default=None)


def largest_error(claim: Findings) -> float | None:
    """Return the largest error of an exact claim over names and seeds.

    None if there is none, or if one is not finite.
    """
    rows = claim.latest["values"][""][""] if claim.latest and claim.is_exact else {}
    errors = [x for row in rows.values() for x in row]
    return None if None in errors else max(errors, default=None)


class Strips(NamedTuple):
    """Seeds of the latest record, to be drawn: arguments of `seed_strips`."""

    panels: dict[str, dict[str, Sequence[float]]]
    references: dict[str, dict[str, float]]
    logarithmic: bool


def strips(claim: Findings) -> Strips | None:
    """Return every seed of the latest record, as a picture shows it; None without seeds.

    In each environment, the metrics that clauses are about; of an exact claim, its errors and those
    of planted mistakes.
    """
    record = claim.latest
    if not record or not record["values"]:
        return None
    if claim.is_exact:
        rows = {f"error: {k}": v for k, v in record["values"][""][""].items()}
        rows |= {f"planted: {k}": v for k, v in record["planted"].items()}
        limits = {name: claim.declared[name] for name in ("tolerance", "effect")}
        return Strips({"error": _finite(rows)}, {"error": limits}, True)
    panels, references = {}, {}
    for label, sides in record["values"].items():
        for metric in metrics(record, label):
            rows = {side: of[metric] for side, of in sides.items() if metric in of}
            if not rows:
                continue
            name = f"{metric} in {label}"
            panels[name] = _finite(rows)
            found = claim.scales.get(label)
            if found and metric in scale.RETURNS:
                references[name] = {"random": found.random, "best known": found.best}
    return Strips(panels, references, False) if panels else None


def _finite(rows: Record) -> dict[str, Sequence[float]]:
    return {name: [math.nan if x is None else x for x in values] for name, values in rows.items()}


def metrics(record: Record, label: str) -> list[str]:
    """Return the metrics that clauses are about in an arena of a record, the claim's own first."""
    own = record["declared"]["metric"]["name"]
    asked = [c["metric"] or own for c in record["clauses"] if c["environment"] in ("", label)]
    return sorted(dict.fromkeys(asked or [own]), key=lambda metric: metric != own)


def means(claim: Findings) -> list[tuple[str, str, dict[str, str]]]:
    """Return the means of the sides on the reported seeds: (metric, environment, {side: mean}).

    Each mean with its `score_interval`, and where it lies on the scale, if one is known.
    """
    record, found = claim.latest, []
    if not record or claim.is_exact:
        return []
    for label, sides in record["values"].items():
        known = claim.scales.get(label)
        for metric in metrics(record, label):
            row = {}
            for side, of in sides.items():
                values = [x for x in of.get(metric, ()) if x is not None]
                if not values:
                    continue
                mean, low, high = score_interval(values)
                row[side] = f"{number(mean)} [{number(low)}, {number(high)}]"
                if known and metric in scale.RETURNS:
                    row[side] += f" ({100 * known.position(mean):.0f} %)"
            found.append((metric, label, row))
    return found


def figures(record: Record) -> str:
    """Return the means of an attempt that spent no reported seed, on its tuning seeds.

    Empty if it kept none, or if its clauses have the figures.
    """
    if record["event"] != "ended" or record.get("values") or not record.get("pilot"):
        return ""
    said = [
        f"{side} {number(float(np.mean(values)))} ({metric}, {label})"
        for label, sides in record["pilot"].items()
        for metric in metrics(record, label)
        for side, of in sides.items()
        if (values := [x for x in of.get(metric, ()) if x is not None])
    ]
    return f"On tuning seeds: {', '.join(said)}."


def environments(record: Record) -> Sequence[Record]:
    """Return the arenas of an attempt."""
    declared = record["declared"]
    return (record["budget"] == "large" and declared["large"]) or declared["environments"]


# ------------------------------------------------------------------------------- in words


def where(claim: Findings, clause: Record) -> str:
    """Return a result's environment, or "all environments"; empty if there is only one."""
    many = claim.latest and len(claim.latest["values"]) > 1
    return (clause["environment"] or "all environments") if many else ""


def other_metric(claim: Findings, clause: Record) -> str:
    """Return the metric of a result if it is not the claim's own."""
    own = claim.latest["declared"]["metric"]["name"] if claim.latest else ""
    return "" if clause["metric"] == own else clause["metric"]


def result_text(claim: Findings, clause: Record) -> str:
    """Return a clause, its environment, its result, and where that should lie."""
    what, _, tail = clause["text"].rpartition(" in ")
    names = claim.latest["values"] if claim.latest else ()
    text = what if what and set(tail.split(", ")) <= set(names) else clause["text"]
    if place := where(claim, clause):
        text += f" in {place}" if clause["environment"] else f" over {place}"
    if metric := other_metric(claim, clause):
        text += f", by {metric}"
    if clause.get("of_mechanism"):
        text += " (is it the mechanism?)"
    text = f"{text}: {interval(clause)}, needed {requirement(clause)}"
    if (share := clause.get("share")) is not None:
        text += f"; switching it off costs {100 * share:.0f} % of the effect"
    ends = clause["low"], clause["high"]
    inside = clause["verdict"] == "holds" and None not in ends and not ends[0] <= 0 <= ends[1]
    if inside and (clause["kind"] == "equal" or (clause["kind"] == "not worse" and ends[1] < 0)):
        text += f", though it is {'worse' if ends[1] < 0 else 'better'} by "
        text += number(abs(clause["value"]))
    return text


def interval(clause: Record) -> str:
    """Return `value [low, high]`, with the estimator if that is not the mean."""
    ends = f"[{number(clause['low'])}, {number(clause['high'])}]"
    estimator = "" if clause["estimator"] == "mean" else f" ({clause['estimator']})"
    return f"{number(clause['value'])} {'(no interval)' if '?' in ends else ends}{estimator}"


def requirement(clause: Record) -> str:
    """Return where the whole interval must lie for the clause to hold."""
    margin = number(clause["margin"])
    if clause["kind"] == "better":
        return f"above {margin}"
    return f"above -{margin}" if clause["kind"] == "not worse" else f"within ±{margin}"
