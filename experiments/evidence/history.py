"""The error that attempts at a claim may spend, and the verdict of all of them together.

The tries of a claim may call it true though it is false with probabilities, `spend`, that add up to
0.05. More seeds are a try, and so is another design: whoever moves a claim until it holds has no
better odds than whoever tests it once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl.core.errors import UserError

HOLDS, FAILS, INCONCLUSIVE = "holds", "does not hold", "inconclusive"
UNTESTABLE = "untestable"
PILOT = "pilot"  # the budget, and the verdict, of an attempt that spends no reported seed
ERROR = 0.05  # probability of calling a false claim true, over all tries
MOST_DESIGNS = 2  # a claim that held on a later one is `redesigned`
# What may change without another design: the number of seeds.
SEEDS = ("seeds was ", "large_seeds was ", "tuning_seeds was ")

Record = Mapping[str, Any]


def spend(number: int) -> float:
    """Return the probability with which try 1, 2, ... may call a false claim true.

    It is 0.05 / (k (k + 1)), that is 0.025, 0.0083, 0.0042, ..., which add up to 0.05 however many
    there are. Raises `UserError` for a number below 1.
    """
    if number < 1:
        raise UserError(f"Tries are counted from 1; got {number}.")
    return ERROR / (number * (number + 1))


def confidence(number: int) -> float:
    """Return the level of the two-sided intervals of a try.

    A false claim is called true by an error at one end alone, so the first try has the familiar
    95 %, the second 98.3 %.
    """
    return 1 - 2 * spend(number)


def level_of_look(level: float, looks: int) -> float:
    """Return the level at which each of several looks at growing seeds is judged (Bonferroni)."""
    return 1 - (1 - level) / looks


def next_confidence(level: float) -> float:
    """Return the level of the try after the one with this `level`."""
    number = 1
    while confidence(number) < level - 1e-9:
        number += 1
    return confidence(number + 1)


def designs(records: Iterable[Record]) -> dict[int, int]:
    """Return the number of the design of each attempt, pilots included.

    An attempt that changed anything but the number of seeds, though figures of an earlier one were
    seen, is of a new design, even if it goes back to an older one. So is an exact one that measures
    other errors, which its declaration does not name.

    records: of one id, begun and ended.
    """
    records = list(records)
    ended = [r for r in records if _counts(r) and r.get("values")]
    errors = {r["attempt"]: _error_names(r) for r in ended}
    found, number, last = {}, 1, None
    for record in records:
        attempt = record.get("attempt")
        if _counts(record) and attempt not in found:
            moved = any(not change.startswith(SEEDS) for change in record["changed"])
            names = errors.get(attempt)
            moved |= None not in (names, last) and names != last
            last = names or last
            number += bool(found) and moved
            found[attempt] = number
    return found


def _error_names(record: Record) -> frozenset[str] | None:
    """Return what an exact claim's record measures; None for another claim's."""
    if record["kind"] != "exact":
        return None
    return frozenset(name for side in record["values"][""].values() for name in side)


def tries(records: Iterable[Record], attempt: int) -> int:
    """Return which try a registered attempt is: 1 and all that came before.

    Each earlier attempt counts, ended or not, unless it held with the same design: nobody tries
    again for what is reached, so a result that is renewed keeps its level. Pilots of another design
    count once for each design.

    records: of one id, begun and ended.
    """
    records = [r for r in records if _counts(r) and r["attempt"] <= attempt]
    design = designs(records)
    earlier = {r["attempt"]: r for r in records if r["attempt"] < attempt}  # each one's last
    spent = {
        ("pilot", design[number]) if r["budget"] == PILOT else number
        for number, r in earlier.items()
        if design[number] != design[attempt] or (r["budget"] != PILOT and r.get("verdict") != HOLDS)
    }
    tested = {design[n] for n, r in earlier.items() if r["budget"] != PILOT}
    return 1 + len(spent - {("pilot", number) for number in tested})


@dataclasses.dataclass(frozen=True)
class Standing:
    """The verdict of all attempts together.

    why: in one sentence. replicated: the claim held a second time on fresh seeds, unrevised.
    design, designs: the number of the design that the verdict is about, and of all designs.
    """

    verdict: str
    why: str
    replicated: bool = False
    design: int = 1
    designs: int = 1

    @property
    def is_redesigned(self) -> bool:
        """Return whether it holds, but took more than two designs."""
        return self.verdict == HOLDS and self.design > MOST_DESIGNS

    def __str__(self) -> str:
        """Return the verdict, with the design that it is about if there were several."""
        if self.designs == 1:
            return self.verdict
        return f"{self.verdict}, on design {self.design} of {self.designs}"


def standing(records: Iterable[Record]) -> Standing:
    """Return the verdict of all attempts together, from the records of one id.

    Records of attempts that only began, of tiny runs and from before the harness are left out;
    pilots count as designs only.

    An attempt judges at the level of its try, so each verdict may stand for itself, and the last
    design decides: if it held and failed with one and the same design, the claim is inconclusive
    (an equality that failed once fails); if it held, it holds, even if another run of it stayed
    open. If the last design decided nothing, an earlier "does not hold" stays, and an earlier
    "holds" does not carry over. Only two different designs make a claim untestable. As "holds"
    comes from an attempt that held, a false claim reaches it with a probability of at most 0.05,
    whatever the number of attempts and whenever one stops.

    Raises `UserError` if no attempt has ended.
    """
    records = [r for r in records if _counts(r)]
    design = designs(records)
    ended = {r["attempt"]: r for r in records if r["event"] == "ended" and r["budget"] != PILOT}
    if not ended:
        raise UserError("No attempt at this claim has ended.")
    attempts = [ended[number] for number in sorted(ended)]
    verdict, why, replicated = _verdict(attempts, design)
    return Standing(verdict, why, replicated, design[max(ended)], max(design.values()))


def _verdict(attempts: Sequence[Record], design: Mapping[int, int]) -> tuple[str, str, bool]:
    """Return the verdict of attempts that ended, why, and whether it is replicated."""
    last = attempts[-1]
    now = [r for r in attempts if design[r["attempt"]] == design[last["attempt"]]]
    held = _numbers(r for r in now if r["verdict"] == HOLDS)
    failed = _numbers(r for r in now if r["verdict"] == FAILS)
    if failed and (last["kind"] == "exact" or not held):
        return FAILS, _why(now, FAILS), False
    if held and failed:
        why = f"It held in attempt {held} and did not hold in attempt {failed}, of the same design."
        return INCONCLUSIVE, why, False
    if held:
        same = [r for r in attempts if r["digest"] == last["digest"] and r["verdict"] == HOLDS]
        return HOLDS, _why(now, HOLDS), len(same) > 1
    decided = [r for r in attempts if r["verdict"] in (HOLDS, FAILS)]
    if decided and decided[-1]["verdict"] == FAILS:
        before = f"Attempt {decided[-1]['attempt']} did not hold, and none since has decided"
        return FAILS, f"{before}: {decided[-1]['why']}", False
    if decided:
        before = f"Attempt {decided[-1]['attempt']} held, with another declaration or other code"
        return INCONCLUSIVE, f"{before}; since then: {last['why']}", False
    if last["verdict"] == UNTESTABLE:
        tried = {design[r["attempt"]] for r in attempts if r["verdict"] == UNTESTABLE}
        if len(tried) < 2:
            first = "Untestable as declared, which a second declaration has to confirm"
            return INCONCLUSIVE, f"{first}: {last['why']}", False
        return UNTESTABLE, last["why"], False
    return INCONCLUSIVE, last["why"], False


def _counts(record: Record) -> bool:
    is_attempt = record.get("format") == 2 and record["event"] in ("begun", "ended")
    return is_attempt and record["budget"] != "tiny"


def _numbers(records: Iterable[Record]) -> str:
    return ", ".join(str(r["attempt"]) for r in records)


def _why(records: Sequence[Record], verdict: str) -> str:
    """Return the reason of the last record with this verdict."""
    return [r["why"] for r in records if r["verdict"] == verdict][-1]
