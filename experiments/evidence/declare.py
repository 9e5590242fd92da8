"""What a check states before it runs: a paper's claim, and the test of it.

A check is a file `experiments/claims/<track>/<id>.py` (with _ for -) with one constant `CHECK`, a
`Claim` (sides compared over seeds) or an `Exact` (equalities). It computes nothing when imported.
The harness does all else: budgets, tuning, seeds, looks before it spends, verdict, record, page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl.core.errors import UserError

Measured = Mapping[str, Any]  # name of a metric -> [runs]


@dataclasses.dataclass(frozen=True)
class Paper:
    """title, authors, year, arxiv (number, empty if there is none), and `says`: what the paper
    claims in its own scope, beside which the tested claim is read."""

    title: str
    authors: str
    year: int
    arxiv: str
    says: str


@dataclasses.dataclass(frozen=True)
class Metric:
    """What clauses are about: its name, the lowest and the highest value that can be reached (in a
    environment that has no range of its own), and whether more is better.

    estimator: "interquartile mean" if the claim is about the middle half of the seeds, not about
        all; unless said the mean, or shares of seeds where these end in two groups.
    """

    name: str
    low: float
    high: float
    more_is_better: bool = True
    estimator: str = ""

    def __post_init__(self):
        if self.estimator not in ("", "interquartile mean"):
            raise UserError(
                f"An estimator is 'interquartile mean' or left out, not '{self.estimator}'."
            )


@dataclasses.dataclass(frozen=True)
class World:
    """Where sides are compared: an environment by name, with the environment steps that each run of
    each side has there.

    low, high: the lowest and the highest value of the metric there; scores of several environments
        are pooled on the scale from 0 at `low` to 1 at `high`.
    settings: of all sides there, by endings of their names, as far as a side has them.
    points, episodes: at how many moments, evenly spaced, how many episodes are evaluated.
    """

    env: str
    env_steps: int
    low: float
    high: float
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    points: int = 5
    episodes: int = 16
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or self.env


@dataclasses.dataclass(frozen=True)
class Side:
    """One of those compared: a system and its settings. `grid`: name of a hyperparameter (or of
    several, one product) -> values to tune over, on seeds of their own, each side with as many
    points as the others. `deviates`: how it differs from its paper, in a sentence."""

    system: Any  # has Config, and builds an algorithm when called with (env, config)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    deviates: str = ""

    @property
    def points(self) -> int:
        """How many settings are tried."""
        count = 1
        for values in self.grid.values():
            count *= len(values)
        return count


@dataclasses.dataclass(frozen=True)
class Clause:
    """What must be true of two sides, in every one of `environments` (where none are named, in the
    only one, or in all, pooled on their common scale): with `kind` "better" `one` exceeds `other`
    by more than `margin`, with "not worse" it falls short by less, with "equal" it differs by less.
    Margins are in the metric's units in an environment, on the scale from 0 to 1 where pooled.
    `metric`: the claim's own unless said.

    of_mechanism: `other` is `one` with its mechanism switched off; where it costs nothing, a claim
    that holds is inconclusive, since the effect may be due to something else.
    """

    kind: str
    one: str
    other: str
    margin: float = 0.0
    environments: tuple[str, ...] = ()
    metric: str = ""
    of_mechanism: bool = False

    def __post_init__(self):
        if self.kind not in ("better", "not worse", "equal"):
            raise UserError(f"A clause is better, not worse or equal, not '{self.kind}'.")
        if self.margin < 0 or (self.kind != "better" and self.margin == 0):
            raise UserError(
                f"The margin of '{self.one}' {self.kind} '{self.other}' is {self.margin:g}; it "
                f"must be {'at least' if self.kind == 'better' else 'above'} 0."
            )

    def __str__(self) -> str:
        where = f" in {', '.join(self.environments)}" if self.environments else ""
        margin = f" by {self.margin:g}" if self.margin else ""
        return f"{self.one} {self.kind} than {self.other}{margin}{where}".replace(
            "equal than", "equal to"
        )


def better(one: str, other: str, margin: float = 0.0, *environments: str, **more: Any) -> Clause:
    """`one` exceeds `other` by more than `margin`."""
    return Clause("better", one, other, margin, environments, **more)


def not_worse(one: str, other: str, margin: float, *environments: str, **more: Any) -> Clause:
    """`one` falls short of `other` by less than `margin`."""
    return Clause("not worse", one, other, margin, environments, **more)


def equal(one: str, other: str, margin: float, *environments: str, **more: Any) -> Clause:
    """`one` and `other` differ by less than `margin`."""
    return Clause("equal", one, other, margin, environments, **more)


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A way to break the mechanism: what `change` makes of the attribute `where` (such as
    "jaxrl.losses:gae", in every module that imported it) must be seen by the verdict."""

    name: str
    where: str
    change: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a measuring function is told: which side, where, and how much it may spend. `tiny` runs
    are for tests: they only have to compile and to give finite numbers."""

    name: str
    side: Side
    environment: World
    env_steps: int
    tiny: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """An empirical claim: sides, in environments, over seeds.

    measure(trial, keys [runs], {name of a hyperparameter: [runs]}) -> {metric: [runs]}, of which
        run i depends on key i alone; unless said that of the learning curve (`measure.curve`):
        "score" is the mean over training, "final" the end, "untrained" the beginning. It draws per
        key whatever precedes learning (datasets, warm-ups, levels, opponents).
    shared: what all seeds share on purpose, in words; empty if nothing.
    tuned_by: the metric that tuning maximizes; the claim's own unless said.
    tuning_seeds: how many seeds each point of a grid is tried on.
    seeds, large_seeds: how many are reported, on two CPU cores and on an accelerator.
    minutes: of two CPU cores, tuning included, in which all of it is done.
    left_out: what of the paper is not tested, in words.
    notes: anything else that a reader must know.
    diagnosis: said afterwards, of what came out otherwise than the paper has it: why, as far as is
        known, and what was tried.
    large: environments in the place of `environments` on an accelerator; none if they are the same.
    """

    paper: Paper
    claim: str
    left_out: str
    parts: tuple[str, ...]  # files
    metric: Metric
    environments: tuple[World, ...]
    sides: Mapping[str, Side]
    clauses: tuple[Clause, ...]
    seeds: int
    minutes: float
    measure: Callable[[Trial, Any, Mapping[str, Any]], Measured] | None = None
    tuned_by: str = ""
    tuning_seeds: int = 3
    shared: str = ""
    notes: str = ""
    diagnosis: str = ""
    mutations: tuple[Mutation, ...] = ()
    large: tuple[World, ...] = ()
    large_seeds: int = 0

    def __post_init__(self):
        if len(self.claim) > 140:
            raise UserError(f"A claim is said in 140 characters, not {len(self.claim)}.")
        known = {environment.label for environment in self.environments}
        for clause in self.clauses:
            for side in (clause.one, clause.other):
                if side not in self.sides:
                    raise UserError(f"The clause '{clause}' names '{side}', which is no side.")
            for environment in clause.environments:
                if environment not in known:
                    raise UserError(
                        f"The clause '{clause}' names '{environment}', which is no environment."
                    )
        if not any(not clause.of_mechanism for clause in self.clauses):
            raise UserError("A claim needs a clause that may fail.")
        points = {side.points for side in self.sides.values() if side.grid}
        if len(points) > 1:
            raise UserError(f"Sides are tuned over {sorted(points)} settings; it must be as many.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact:
    """A claim of equality, in float64: for every seed every one of `errors(key)`, {name: error}, is
    at most `tolerance`; and each of the planted mistakes `planted[name](key)`, the same errors with
    something wrong, has one that exceeds `effect`."""

    paper: Paper
    claim: str
    left_out: str
    parts: tuple[str, ...]
    errors: Callable[[Any], Mapping[str, Any]]
    planted: Mapping[str, Callable[[Any], Mapping[str, Any]]]
    tolerance: float = 1e-9
    effect: float = 1e-3
    seeds: int = 10
    minutes: float = 2.0
    notes: str = ""
    diagnosis: str = ""
    mutations: tuple[Mutation, ...] = ()

    def __post_init__(self):
        if not self.planted:
            raise UserError("An exact check plants a mistake that it must see.")
        if not self.tolerance < self.effect:
            raise UserError(f"effect is {self.effect:g}; it must exceed {self.tolerance:g}.")


Check = Claim | Exact
