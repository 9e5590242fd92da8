"""Findings: everything known of a claim, from its declaration and its records.

Pages are written from them. This module also puts clauses and their effects into words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.evidence import renaming
from experiments.evidence.digests import as_json, revisions
from experiments.evidence.history import Standing
from experiments.evidence.pictures import Effect, Panel
from experiments.evidence.words import number
from jaxrl.algorithms import families
from jaxrl.core.errors import UserError

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
) -> list[Findings]:
    """Return the findings of claims, by family and id.

    claims: (id, family, declaration or its dict) each. records: of all claims, oldest first.
    stale: id -> how its latest record is stale, in a sentence. standing: returns the verdict of
    records that ended. Raises `UserError` if an id is taken by the page of a family or of failures.
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
        attempts = [r for r in events if r["event"] != "renamed"]
        ended = [r for r in attempts if r["event"] == "ended"]
        found.append(
            Findings(
                id,
                family,
                as_json(declaration),
                standing(ended) if ended else Standing("not run", ""),
                ended[-1] if ended else None,
                attempts,
                events,
                [r for r in mine if not r.get("format")],
                stale.get(id, ""),
            )
        )
    return found


# ------------------------------------------------------------------------------- outcomes


def marks(claim: Findings) -> list[str]:
    """Return what a reader must know beside the verdict, in a word or two each."""
    latest, found = claim.latest, []
    if latest:
        found += ["replicated"] if claim.standing.replicated else []
        found += ["revised"] if any(r["changed"] for r in claim.records) else []
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
    until = next(r for r in claim.events if r.get("attempt") == record["attempt"])
    old = renaming.translate(before[-1]["declared"], claim.events, before[-1], until)
    return revisions(old, record["declared"])


def deciding(claim: Findings) -> Record | None:
    """Return the clause nearest to failing among those with the worst outcome."""

    def room(clause: Record) -> tuple:
        effect = as_effect(clause)
        low, high = effect.band()
        three = effect.in_margins() or (0.0, low, low)
        ranks = ("does not hold", "inconclusive", "holds")
        of_mechanism = clause.get("of_mechanism", False)
        worst = ranks.index(clause["verdict"]) if clause["verdict"] in ranks else 0
        failed = claim.standing.verdict == "does not hold"
        return of_mechanism and failed, worst, of_mechanism, min(three[1] - low, high - three[2])

    return min(claim.clauses, key=room, default=None)


def as_effect(clause: Record, text: str = "") -> Effect:
    """Return a clause's result as a picture draws it."""
    names = ("kind", "verdict", "margin", "value", "low", "high")
    return Effect(text, *(clause[name] for name in names))


def largest_error(claim: Findings) -> float | None:
    """Return the largest error of an exact claim over names and seeds.

    None if there is none, or if one is not finite.
    """
    rows = claim.latest["values"][""][""] if claim.latest and claim.is_exact else {}
    errors = [x for row in rows.values() for x in row]
    return None if None in errors else max(errors, default=None)


def effects(claim: Findings) -> list[Effect]:
    """Return all effects of the latest record.

    An exact claim has one, its largest error, which must lie below the tolerance.
    """
    if claim.is_exact and claim.latest:
        error, tolerance = largest_error(claim), claim.declared["tolerance"]
        verdict = claim.latest["verdict"]
        return [Effect("largest error", "equal", verdict, tolerance, error, error, error)]
    several = len({_before_kind(c) for c in claim.clauses}) > 1
    return [as_effect(c, _short(claim, c, several)) for c in claim.clauses]


def panels(claim: Findings) -> list[Panel]:
    """Return panels that show every seed of the latest record.

    In each environment, the metrics that clauses are about; of an exact claim, its errors and those
    of planted mistakes.
    """
    record = claim.latest
    if not record:
        return []
    if claim.is_exact:
        rows = {f"error: {k}": v for k, v in record["values"][""][""].items()}
        rows |= {f"planted: {k}": v for k, v in record["planted"].items()}
        limits = [claim.declared[name] for name in ("tolerance", "effect")]
        title = "Errors must be left of the first line, planted ones right of the second"
        return [Panel(title, rows, limits=limits, logarithmic=True)]
    own = record["declared"]["metric"]["name"]
    reaches = {w["name"] or w["env"]: (w["low"], w["high"]) for w in environments(record)}
    drawn = []
    for environment, sides in record["values"].items():
        asked = [
            c["metric"] or own for c in record["clauses"] if c["environment"] in ("", environment)
        ]
        for metric in dict.fromkeys(asked or [own]):
            rows = {side: of[metric] for side, of in sides.items() if metric in of}
            first = {side: of.get("untrained", [None]) for side, of in sides.items()}
            before = {side: sum(x) / len(x) for side, x in first.items() if None not in x}
            reach = reaches.get(environment) if metric == own else None
            if rows:
                learned = metric in ("score", "final")  # of the default measuring function
                drawn.append(
                    Panel(f"{environment}: {metric}", rows, before if learned else {}, reach)
                )
    return drawn


def environments(record: Record) -> Sequence[Record]:
    """Return the arenas of an attempt."""
    declared = record["declared"]
    return (record["budget"] == "large" and declared["large"]) or declared["environments"]


# ------------------------------------------------------------------------------- in words


def _short(claim: Findings, clause: Record, with_side: bool) -> str:
    """Return a clause for a picture, with the side that it is about if asked."""
    side = f"{_before_kind(clause)}: " if with_side else ""
    parts = [f"{side}{clause['kind']}{_after_kind(clause)}", other_metric(claim, clause)]
    return ", ".join(part for part in (*parts, where(claim, clause)) if part)


def _before_kind(clause: Record) -> str:
    return clause["text"].partition(f" {clause['kind']} ")[0]


def _after_kind(clause: Record) -> str:
    """Return the clause's words on the other side, such as " than DQN", without margin."""
    rest = clause["text"].partition(f" {clause['kind']} ")[2]
    other = rest.partition(f" by {clause['margin']:g}")[0].partition(" in ")[0]
    return f" {other}".rstrip()


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
    return f"{text}: {interval(clause)}, needed {requirement(clause)}"


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
