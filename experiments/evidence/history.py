"""The error that attempts at a claim may spend, and the verdict of all of them together.

The tries of a claim may call it true though it is false with probabilities, `spend`, that add up to
0.05, so whoever revises a claim until it holds has no better odds than whoever tests it once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl.core.errors import UserError

HOLDS, FAILS, INCONCLUSIVE = "holds", "does not hold", "inconclusive"
UNTESTABLE = "untestable"
ERROR = 0.05  # probability of calling a false claim true, over all tries

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


def next_confidence(level: float) -> float:
    """Return the level of the try after the one with this `level`."""
    number = 1
    while confidence(number) < level - 1e-9:
        number += 1
    return confidence(number + 1)


def tries(records: Iterable[Record], attempt: int) -> int:
    """Return which try a registered attempt is: 1 and the earlier ones that might have held.

    Attempts that held do not count, since nobody tries again for what is reached (so a record that
    became stale is renewed at the level it had). Nor do attempts that ended as untestable, whose
    reported seeds were not run. Attempts that began and never ended do.

    records: of one id, begun and ended.
    """
    records = [r for r in records if _counts(r) and r["attempt"] < attempt]
    free = {r["attempt"] for r in records if r.get("verdict") in (HOLDS, UNTESTABLE)}
    return 1 + len({r["attempt"] for r in records} - free)


@dataclasses.dataclass(frozen=True)
class Standing:
    """The verdict of all attempts together.

    why: in one sentence. replicated: the claim held a second time on fresh seeds, unrevised.
    """

    verdict: str
    why: str
    replicated: bool = False


def standing(records: Iterable[Record]) -> Standing:
    """Return the verdict of all attempts together, from the records of one id.

    Records of attempts that only began, of tiny runs and from before the harness are left out.

    An attempt judges at the level of its try, so each verdict may stand for itself, and the last
    design (declaration and programs) decides: if it held and failed with one and the same design,
    the claim is inconclusive (an equality that failed once fails); if it held, it holds, even if
    another run of it stayed open. If the last design decided nothing, an earlier "does not hold"
    stays, and an earlier "holds" does not carry over. Only two different declarations make a claim
    untestable. As "holds" comes from an attempt that held, a false claim reaches it with a
    probability of at most 0.05, whatever the number of attempts and whenever one stops.

    Raises `UserError` if no attempt has ended.
    """
    ended = {r["attempt"]: r for r in records if _counts(r) and r["event"] == "ended"}
    if not ended:
        raise UserError("No attempt at this claim has ended.")
    attempts = [ended[number] for number in sorted(ended)]
    last = attempts[-1]
    now = [r for r in attempts if _design(r) == _design(last)]
    held = _numbers(r for r in now if r["verdict"] == HOLDS)
    failed = _numbers(r for r in now if r["verdict"] == FAILS)
    if failed and (last["kind"] == "exact" or not held):
        return Standing(FAILS, _why(now, FAILS))
    if held and failed:
        return Standing(
            INCONCLUSIVE, f"It held in attempt {held} and did not hold in attempt {failed}, "
            "of the same declaration and programs."
        )  # fmt: skip
    if held:
        same = [r for r in attempts if r["digest"] == last["digest"] and r["verdict"] == HOLDS]
        return Standing(HOLDS, _why(now, HOLDS), len(same) > 1)
    decided = [r for r in attempts if r["verdict"] in (HOLDS, FAILS)]
    if decided and decided[-1]["verdict"] == FAILS:
        before = f"Attempt {decided[-1]['attempt']} did not hold, and none since has decided"
        return Standing(FAILS, f"{before}: {decided[-1]['why']}")
    if decided:
        before = f"Attempt {decided[-1]['attempt']} held, with another declaration or other code"
        return Standing(INCONCLUSIVE, f"{before}; since then: {last['why']}")
    if last["verdict"] == UNTESTABLE:
        designs = {r["digest"] for r in attempts if r["verdict"] == UNTESTABLE}
        if len(designs) < 2:
            first = "Untestable as declared, which a second declaration has to confirm"
            return Standing(INCONCLUSIVE, f"{first}: {last['why']}")
        return Standing(UNTESTABLE, last["why"])
    return Standing(INCONCLUSIVE, last["why"])


def _counts(record: Record) -> bool:
    is_attempt = record.get("format") == 2 and record["event"] in ("begun", "ended")
    return is_attempt and record["budget"] != "tiny"


def _design(record: Record) -> Any:
    return record["digest"], record.get("programs")


def _numbers(records: Iterable[Record]) -> str:
    return ", ".join(str(r["attempt"]) for r in records)


def _why(records: Sequence[Record], verdict: str) -> str:
    """Return the reason of the last record with this verdict."""
    return [r["why"] for r in records if r["verdict"] == verdict][-1]
