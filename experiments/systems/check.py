"""What a check of a system's claim returns, how much it may spend, and when a claim holds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from jaxrl.core.errors import UserError, unknown
from jaxrl.evaluation.statistics import mean_interval, rate_interval

HOLDS, FAILS, INCONCLUSIVE = "holds", "does not hold", "inconclusive"
MIN_SEEDS = 5  # fewer give no verdict
BUDGETS = ("tiny", "full", "large")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much a check may spend; the check decides its steps and seeds from it.

    tiny: seconds, for the tests (it compiles, figures are finite); gives no verdict that counts.
    full: at most about five minutes on two CPU cores.
    large: for an accelerator.
    """

    name: str = "full"
    seeds: int | None = None  # asked for by the user, in place of the check's own number

    def __post_init__(self):
        if self.name not in BUDGETS:
            raise unknown("budget", self.name, BUDGETS)
        if self.seeds is not None and self.seeds < 1:
            raise UserError(f"seeds must be at least 1, got {self.seeds}.")

    def choose(self, tiny: T, full: T, large: T | None = None) -> T:
        """What fits this budget; `full` again where there is nothing larger."""
        return {"tiny": tiny, "full": full, "large": full if large is None else large}[self.name]

    def num_seeds(self, tiny: int, full: int, large: int | None = None) -> int:
        """How many seeds to run: what the user asked for, else what fits this budget."""
        return self.seeds or self.choose(tiny, full, large)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number for each seed, their mean and its 95 % interval."""

    name: str
    value: float
    low: float
    high: float
    per_seed: tuple[float, ...]


def figure(name: str, per_seed: ArrayLike, rate: bool = False) -> Figure:
    """The mean of `per_seed` [seeds] with Student's interval; that of a `rate`, by its nature
    between 0 and 1, stays there. Raises `UserError` unless every value is finite."""
    values = np.asarray(per_seed, np.float64)
    mean, low, high = (rate_interval if rate else mean_interval)(values)
    return Figure(name, mean, low, high, tuple(values.tolist()))


@dataclasses.dataclass(frozen=True)
class Check:
    """What came out when the claim of a system was put to the test."""

    claim: str  # one line
    metric: str  # what every figure below is in
    measured: Figure
    baseline: Figure  # under the same budget
    verdict: str  # holds, does not hold or inconclusive
    budget: Budget
    difference: Figure | None = None  # seed by seed, measured less baseline, positive if better
    margin: float | None = None  # what `difference` must exceed, or a tolerance
    ablation: Figure | None = None  # the mechanism switched off
    ablation_loss: Figure | None = None  # seed by seed, what switching it off costs
    details: tuple[Figure, ...] = ()
    notes: str = ""

    @property
    def seeds(self) -> int:
        return len(self.measured.per_seed)

    @property
    def holds(self) -> bool | None:
        """Whether the claim holds; None if that stays open."""
        return {HOLDS: True, FAILS: False, INCONCLUSIVE: None}[self.verdict]


def verdict(differences: ArrayLike, margin: float = 0.0, confidence: float = 0.95) -> str:
    """Whether a mean of paired differences [seeds], positive where the claim is right, exceeds
    `margin` (negative: by how much it may fall short).

    It holds if the whole confidence interval lies above the margin, does not hold if the whole of
    it lies at or below, and is inconclusive otherwise and with fewer than 5 seeds. Differences
    that are all alike have an interval of no width. Raises `UserError` unless all are finite.
    """
    differences = np.asarray(differences, np.float64)
    _, low, high = mean_interval(differences, confidence)
    if len(differences) < MIN_SEEDS:
        return INCONCLUSIVE
    return HOLDS if low > margin else FAILS if high <= margin else INCONCLUSIVE


def because_of(claim: str, losses: ArrayLike, confidence: float = 0.95) -> str:
    """The verdict `claim`, which a test of the mechanism itself may weaken: what holds while
    switching the mechanism off costs nothing (the interval of the paired `losses` [seeds] does not
    lie above 0) is inconclusive, since the effect may be due to something else."""
    if claim == HOLDS and verdict(losses, 0.0, confidence) != HOLDS:
        return INCONCLUSIVE
    return claim


def agreement(errors: ArrayLike, tolerance: float, ablation: ArrayLike, effect: float) -> str:
    """Whether two computations are the same: for every seed `errors` [seeds] is at most
    `tolerance`, while with the mechanism switched off `ablation` [seeds] is above `effect`.

    It is exact, so one seed outside means that it does not hold, and there is no interval; if the
    ablation agrees too, the comparison sees nothing, which is inconclusive.
    """
    errors, ablation = np.asarray(errors, np.float64), np.asarray(ablation, np.float64)
    if not np.all(errors <= tolerance):  # also where one is NaN
        return FAILS
    return HOLDS if len(errors) >= MIN_SEEDS and np.all(ablation > effect) else INCONCLUSIVE


def compare(
    claim: str,
    metric: str,
    measured: Figure,
    baseline: Figure,
    budget: Budget,
    margin: float = 0.0,
    ablation: Figure | None = None,
    details: Sequence[Figure] = (),
    notes: str = "",
) -> Check:
    """A Check of "measured is better than baseline by more than `margin`", larger being better,
    seed by seed. With an `ablation`, a claim holds only if switching the mechanism off costs
    something (`because_of`)."""
    difference = _paired(f"{measured.name} - {baseline.name}", measured, baseline)
    result = verdict(difference.per_seed, margin)
    loss = None
    if ablation is not None:
        loss = _paired(f"{measured.name} - {ablation.name}", measured, ablation)
        result = because_of(result, loss.per_seed)
    return Check(
        claim,
        metric,
        measured,
        baseline,
        result,
        budget,
        difference,
        margin,
        ablation,
        loss,
        tuple(details),
        notes,
    )


def _paired(name: str, x: Figure, y: Figure) -> Figure:
    if len(x.per_seed) != len(y.per_seed):
        raise UserError(
            f"Paired figures need the same seeds; {x.name} has {len(x.per_seed)} and {y.name} has "
            f"{len(y.per_seed)}."
        )
    return figure(name, np.subtract(x.per_seed, y.per_seed))


def as_data(check: Check) -> dict[str, Any]:
    """A Check as what JSON can hold: figures as objects, numbers that are not finite as null."""
    data = dataclasses.asdict(check)
    data |= {"budget": check.budget.name, "seeds": check.seeds, "holds": check.holds}
    return _finite(data)


def _finite(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
