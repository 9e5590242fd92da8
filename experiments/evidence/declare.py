"""Declarations: a paper's claim and the test of it, stated before anything is run.

A claim is a file `experiments/claims/<family>/<id>.py` (with _ for -) with one constant `CLAIM`: a
`Claim` (sides compared over seeds) or an `Exact` (equalities). Importing it computes nothing. The
harness does the rest: budgets, tuning, seeds, looks before it spends, verdict, record, pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from jaxrl.core.errors import UserError

Measured = Mapping[str, Any]  # name of a metric -> [runs]


@dataclasses.dataclass(frozen=True)
class Paper:
    """The paper that makes a claim.

    arxiv: its number; empty if it has none.
    says: what the paper claims in its own scope; pages print it beside the claim that is tested.
    """

    title: str
    authors: str
    year: int
    arxiv: str
    says: str


@dataclasses.dataclass(frozen=True)
class Metric:
    """The quantity that clauses compare.

    meaning: what it is, in words that end the sentence "the metric is ...".

    low, high: its lowest and highest possible value, where an arena has no range of its own.
    estimator: "interquartile mean" if the claim is about the middle half of the seeds, "share" if
        it is about how often. Empty: the mean, with a bootstrap where seeds end in two groups.
    """

    name: str
    low: float
    high: float
    more_is_better: bool = True
    estimator: str = ""
    meaning: str = ""

    def __post_init__(self):
        if self.estimator not in ("", "interquartile mean", "share"):
            raise UserError(
                "An estimator is 'interquartile mean', 'share' or left out, not "
                f"'{self.estimator}'."
            )


@dataclasses.dataclass(frozen=True)
class Arena:
    """An environment in which sides are compared, and the budget of each run there.

    env_steps: environment steps of each run of each side.
    low, high: lowest and highest value of the metric here. Scores that are pooled over arenas are
        rescaled from 0 at `low` to 1 at `high`.
    settings: settings of all sides here, by endings of their names; a side without such a setting
        ignores it.
    points, episodes: number of evaluations, evenly spaced, and episodes in each.
    name: its label, if that is not `env`. Seeds depend on the label.
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
    """One of the things compared: an algorithm with settings.

    algorithm: has a `Config`, and builds an `Algorithm` when called with (env, config).
    grid: name of a hyperparameter -> values to tune over (of several, their product), on seeds of
        its own. Each side that is tuned has as many points as the others.
    deviates: how it differs from its paper, in a sentence.
    banked: whether it is a baseline that claims share (`bank`): tuned once over this grid, with
        values that all claims about this environment and budget read. Seeds of such a claim are
        those of the block that its attempt has.
    """

    algorithm: Any
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    deviates: str = ""
    banked: bool = False

    @property
    def points(self) -> int:
        """Number of points of the grid."""
        count = 1
        for values in self.grid.values():
            count *= len(values)
        return count


@dataclasses.dataclass(frozen=True)
class Clause:
    """A statement about two sides that must be true for the claim to hold.

    kind: "better": `one` exceeds `other` by more than `margin`; "not worse": it falls short by less
        than that; "equal": they differ by less than that.
    margin: in units of the metric; on the scale from 0 to 1 where arenas are pooled.
    environments: labels of the arenas in each of which it must be true. Empty: in the only one,
        or in all of them, pooled on their common scale.
    metric: the claim's own if empty.
    of_mechanism: `other` is `one` with its mechanism switched off. If that costs less than a
        quarter of what `one` is better by, a claim that holds is inconclusive, since the effect may
        be due to something else.
    margin_reason: why the margin of "not worse" or "equal" is more than a tenth of the range from
        random play to the best known there.
    """

    kind: str
    one: str
    other: str
    margin: float = 0.0
    environments: tuple[str, ...] = ()
    metric: str = ""
    of_mechanism: bool = False
    margin_reason: str = ""

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
    """Clause: `one` exceeds `other` by more than `margin`."""
    return Clause("better", one, other, margin, environments, **more)


def not_worse(one: str, other: str, margin: float, *environments: str, **more: Any) -> Clause:
    """Clause: `one` falls short of `other` by less than `margin`."""
    return Clause("not worse", one, other, margin, environments, **more)


def equal(one: str, other: str, margin: float, *environments: str, **more: Any) -> Clause:
    """Clause: `one` and `other` differ by less than `margin`."""
    return Clause("equal", one, other, margin, environments, **more)


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A way to break the mechanism, which the verdict must notice.

    side: the side that it breaks; that of the first clause that is better, if empty.
    where: the attribute to replace, such as "jaxrl.losses:gae", in every module that imported it.
    change: returns the replacement of the attribute's value.
    """

    name: str
    where: str
    change: Callable[[Any], Any]
    side: str = ""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A side in an arena, with the budget that a measuring function may spend.

    tiny: the run is a test; it only has to compile and to give finite numbers.
    """

    name: str
    side: Side
    environment: Arena
    env_steps: int
    tiny: bool = False


class Measure(Protocol):
    """A function that runs one side in one arena and measures it."""

    def __call__(self, trial: Trial, keys: Any, hyper: Mapping[str, Any], /) -> Measured:
        """Return the metrics of all runs, each [runs].

        trial: the side, where it runs, and its budget.
        keys: [runs]. Run i depends on key i alone, and whatever precedes learning (datasets,
            warm-ups, levels, opponents) is drawn for each key.
        hyper: the values [runs] of each hyperparameter that is tuned.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """An empirical claim: sides, in arenas, over seeds.

    parts: files that implement it.
    measure: the measuring function, most often a `course.Course`. None: the learning curve
        (`measure.curve`), with the metrics "score" (mean over training), "final" (at the end) and
        "untrained" (at the beginning).
    shared: what all seeds share on purpose, in words; empty if nothing.
    budgets: units that all sides of an environment spend alike, each a metric that is measured:
        "env_steps", "gradient_steps", "tokens", "comparisons".
    tuned_by: the metric that tuning maximizes; the claim's own if empty.
    tuning_seeds: number of seeds that each point of a grid is tried on.
    seeds, large_seeds: largest number of reported seeds, on two CPU cores and on an accelerator;
        an attempt ends with the first group of them that decides it.
    minutes: time that all of it may take on two CPU cores, tuning included.
    left_out: what of the paper is not tested, in words.
    notes: anything else that a reader must know.
    diagnosis: why it came out other than the paper says, as far as known, and what was tried;
        written afterwards.
    large: arenas on an accelerator in place of `environments`; empty if they are the same.
    """

    paper: Paper
    claim: str
    left_out: str
    parts: tuple[str, ...]
    metric: Metric
    environments: tuple[Arena, ...]
    sides: Mapping[str, Side]
    clauses: tuple[Clause, ...]
    seeds: int
    minutes: float
    measure: Measure | None = None
    budgets: tuple[str, ...] = ()
    tuned_by: str = ""
    tuning_seeds: int = 3
    shared: str = ""
    notes: str = ""
    diagnosis: str = ""
    mutations: tuple[Mutation, ...] = ()
    large: tuple[Arena, ...] = ()
    large_seeds: int = 0

    def __post_init__(self):
        if len(self.claim) > 140:
            raise UserError(f"A claim has at most 140 characters, not {len(self.claim)}.")
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
        points = {side.points for side in self.sides.values() if side.grid and not side.banked}
        if len(points) > 1:
            raise UserError(
                f"Sides are tuned over {sorted(points)} settings; each must have as many."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact:
    """A claim of equality, computed in float64.

    errors: returns {name: error} for a key; for every seed each is at most `tolerance`.
    planted: mistakes by name; each returns the same errors with something wrong, of which one
        exceeds `effect` for every seed.

    The other fields are those of a `Claim`.
    """

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
            raise UserError("An exact claim plants a mistake that it must notice.")
        if not self.tolerance < self.effect:
            raise UserError(f"effect is {self.effect:g}; it must exceed {self.tolerance:g}.")


Declaration = Claim | Exact
