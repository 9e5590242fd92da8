"""What is known of each system, put together from its declaration and the records: what every page
is written from. Also how a clause and its effect are said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.evidence.digests import as_json, changed
from experiments.evidence.history import Standing
from experiments.evidence.pictures import Effect, Panel
from experiments.evidence.words import number
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


class System(NamedTuple):
    """A check: its declaration as plain data, what all its attempts say together, the latest
    record that ended (None if there is none), all its records since the harness and before it,
    oldest first, and how it is stale, in a sentence (empty if it is not)."""

    id: str
    track: str
    check: Mapping[str, Any]
    standing: Standing
    latest: Record | None
    records: Sequence[Record]
    old: Sequence[Record]
    stale: str

    @property
    def exact(self) -> bool:
        return "tolerance" in self.check

    @property
    def file(self) -> str:
        """The path of the check, from the root."""
        return f"experiments/claims/{self.track}/{self.id}.py".replace("-", "_")

    @property
    def clauses(self) -> Sequence[Record]:
        return self.latest["clauses"] if self.latest and not self.exact else ()


def gather(
    checks: Iterable[tuple[str, str, Any]],
    records: Iterable[Record],
    stale: Mapping[str, str],
    judged: Callable[[Sequence[Record]], Standing],
) -> list[System]:
    """Each check (id, track, declaration or its dict) with its records, by track and id. Raises
    `UserError` where an id would have the page of a track or of the failures."""
    checks, records = list(checks), list(records)
    taken = {track for _, track, _ in checks} | {"failures"}
    systems = []
    for id, track, check in sorted(checks, key=lambda c: (c[1], c[0])):
        if id in taken:
            raise UserError(f"The check '{id}' needs another id: a page of that name is there.")
        taken.add(id)
        mine = [r for r in records if r["id"] == id]
        new = [r for r in mine if r.get("format") and r["budget"] != "tiny"]
        ended = [r for r in new if r["event"] == "ended"]
        standing = judged(ended) if ended else Standing("not run", "")
        old = [r for r in mine if not r.get("format")]
        latest = ended[-1] if ended else None
        systems.append(
            System(id, track, as_json(check), standing, latest, new, old, stale.get(id, ""))
        )
    return systems


# ------------------------------------------------------------------------------- what came out


def marks(system: System) -> list[str]:
    """What a reader must know beside the verdict, in a word or two each."""
    latest, found = system.latest, []
    if latest:
        found += ["replicated"] if system.standing.replicated else []
        found += ["revised"] if any(r["changed"] for r in system.records) else []
        found += ["stale"] if system.stale else []
        found += [mark(look) for look in latest["looks"] if not look["ok"]]
        found += ["large"] if latest["budget"] == "large" else []
    found += ["unfinished"] if unfinished(system) else []
    found += ["run before the harness only"] if system.old and not system.records else []
    return list(dict.fromkeys(found))


def mark(look: Record) -> str:
    """A look that is not in order, in a word or two."""
    name: str = look["name"]
    return MARKS.get(name, name)


def unfinished(system: System) -> Record | None:
    """The latest attempt, if it began and has not ended."""
    latest = system.records[-1] if system.records else None
    return latest if latest and latest["event"] == "begun" else None


def revisions(system: System, record: Record) -> list[str]:
    """What was revised for this attempt, in sentences; none if nothing was."""
    before = [r for r in system.records if r["attempt"] < record["attempt"]]
    if not record["changed"] or not before:
        return list(record["changed"])
    return changed(before[-1]["declared"], record["declared"])


def deciding(system: System) -> Record | None:
    """The clause that comes nearest to failing, among those with the worst outcome."""

    def room(clause: Record) -> tuple:
        effect = as_effect(clause)
        low, high = effect.band()
        three = effect.in_margins() or (0.0, low, low)
        ranks = ("does not hold", "inconclusive", "holds")
        of_mechanism = clause.get("of_mechanism", False)
        worst = ranks.index(clause["verdict"]) if clause["verdict"] in ranks else 0
        failed = system.standing.verdict == "does not hold"
        return of_mechanism and failed, worst, of_mechanism, min(three[1] - low, high - three[2])

    return min(system.clauses, key=room, default=None)


def as_effect(clause: Record, text: str = "") -> Effect:
    """A clause's result, to be drawn."""
    names = ("kind", "verdict", "margin", "value", "low", "high")
    return Effect(text, *(clause[name] for name in names))


def largest(system: System) -> float | None:
    """The largest error of an exact check over its names and seeds; None if one is not finite, or
    there is none."""
    rows = system.latest["values"][""][""] if system.latest and system.exact else {}
    errors = [x for row in rows.values() for x in row]
    return None if None in errors else max(errors, default=None)


def effects(system: System) -> list[Effect]:
    """All effects of the latest record; of an exact check its largest error, which must lie below
    the tolerance."""
    if system.exact and system.latest:
        error, tolerance = largest(system), system.check["tolerance"]
        verdict = system.latest["verdict"]
        return [Effect("largest error", "equal", verdict, tolerance, error, error, error)]
    several = len({_before_kind(c) for c in system.clauses}) > 1
    return [as_effect(c, _short(system, c, several)) for c in system.clauses]


def panels(system: System) -> list[Panel]:
    """Every seed of the latest record: in each environment the metrics that clauses are about; of
    an exact check its errors and the planted ones."""
    record = system.latest
    if not record:
        return []
    if system.exact:
        rows = {f"error: {k}": v for k, v in record["values"][""][""].items()}
        rows |= {f"planted: {k}": v for k, v in record["planted"].items()}
        limits = [system.check[name] for name in ("tolerance", "effect")]
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
    """The environments that it was run in."""
    declared = record["declared"]
    return (record["budget"] == "large" and declared["large"]) or declared["environments"]


def _short(system: System, clause: Record, named: bool) -> str:
    """A clause for a picture, with the side that it is about where it has to be `named`."""
    side = f"{_before_kind(clause)}: " if named else ""
    parts = [f"{side}{clause['kind']}{_after_kind(clause)}", other_metric(system, clause)]
    return ", ".join(part for part in (*parts, where(system, clause)) if part)


def _before_kind(clause: Record) -> str:
    return clause["text"].partition(f" {clause['kind']} ")[0]


def _after_kind(clause: Record) -> str:
    """What a clause says of the other side, such as " than DQN", without margin and
    environments."""
    said = clause["text"].partition(f" {clause['kind']} ")[2]
    other = said.partition(f" by {clause['margin']:g}")[0].partition(" in ")[0]
    return f" {other}".rstrip()


def where(system: System, clause: Record) -> str:
    """The environment that a result is of, or that it is of all; empty if there is but one."""
    many = system.latest and len(system.latest["values"]) > 1
    return (clause["environment"] or "all environments") if many else ""


def other_metric(system: System, clause: Record) -> str:
    """What a result is measured by where that is not the claim's own metric."""
    own = system.latest["declared"]["metric"]["name"] if system.latest else ""
    return "" if clause["metric"] == own else clause["metric"]


def said(system: System, clause: Record) -> str:
    """A clause's result: what it says, where, what came out, and where it should lie."""
    what, _, tail = clause["text"].rpartition(" in ")
    names = system.latest["values"] if system.latest else ()
    text = what if what and set(tail.split(", ")) <= set(names) else clause["text"]
    if place := where(system, clause):
        text += f" in {place}" if clause["environment"] else f" over {place}"
    if metric := other_metric(system, clause):
        text += f", by {metric}"
    if clause.get("of_mechanism"):
        text += " (is it the mechanism?)"
    return f"{text}: {interval(clause)}, needed {needed(clause)}"


def interval(clause: Record) -> str:
    """`value [low, high]`, with the estimator where it is not the mean."""
    ends = f"[{number(clause['low'])}, {number(clause['high'])}]"
    estimator = "" if clause["estimator"] == "mean" else f" ({clause['estimator']})"
    return f"{number(clause['value'])} {'(no interval)' if '?' in ends else ends}{estimator}"


def needed(clause: Record) -> str:
    """Where the whole interval must lie for the clause to hold."""
    margin = number(clause["margin"])
    if clause["kind"] == "better":
        return f"above {margin}"
    return f"above -{margin}" if clause["kind"] == "not worse" else f"within ±{margin}"
