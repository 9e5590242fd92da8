"""A suite: its environments, the algorithms that are trained in them, and the resulting runs."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration, run_folder
from jaxrl.runtime.configuration import Experiment
from jaxrl.suites.bsuite import SCORES

SUITES = Path(__file__).resolve().parent
EVALUATIONS = 20  # of each run, evenly spaced
# An installed package holds the published figures; in a clone they lie among the pages.
PUBLISHED = SUITES / "published"
if not PUBLISHED.is_dir():
    PUBLISHED = SUITES.parents[1] / "docs" / "suites" / "published"


@dataclasses.dataclass(frozen=True)
class SuiteEnvironment:
    """An environment of a suite. Scores from 0 at `low` to 1 at `high` are pooled over all of them.

    random: return of random play, from which the page counts the seeds that did not learn; it
        counts none without it.
    metrics: other metrics of an episode that the page reports.
    strip: number of steps between two frames of the page's strip of a policy; 0 for no strip.
    agent: settings of every agent there, such as its data, under those of the algorithm.
    greedy: whether evaluations act greedily, or sample actions.
    score: name in `bsuite.SCORES` of a rule that says from all training episodes whether a seed
        has solved the environment; empty for none.
    """

    env: str
    low: float
    high: float
    random: float | None = None
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    wrappers: tuple[Any, ...] = ()
    metrics: tuple[str, ...] = ()
    strip: int = 0
    agent: dict[str, Any] = dataclasses.field(default_factory=dict)
    greedy: bool = True
    score: str = ""


@dataclasses.dataclass(frozen=True)
class Change:
    """Settings of an algorithm that differ in one environment; those that are None do not.

    agent: settings of the agent, laid over the algorithm's own.
    """

    steps: int | None = None
    seeds: int | None = None
    minutes: float | None = None
    agent: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class First:
    """An algorithm by which another begins: what is trained before it, with the same seeds."""

    algorithm: str
    steps: int
    agent: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class SuiteAlgorithm:
    """An algorithm of a suite with its settings, and how long and where it is trained.

    minutes: estimated time of a run on two cores of an ordinary machine, with what it begins with,
        for the plan.
    first: what it is warm-started from.
    environments: names of the environments; empty for all.
    changes: what differs in an environment, by its name.
    """

    algorithm: str
    steps: int
    seeds: int
    minutes: float
    agent: dict[str, Any] = dataclasses.field(default_factory=dict)
    environments: tuple[str, ...] = ()
    changes: dict[str, Change] = dataclasses.field(default_factory=dict)
    first: First | None = None

    def budget(self, environment: str) -> tuple[int, int]:
        """Return the steps and the seeds of a run in `environment`."""
        change = self.changes.get(environment, Change())
        return change.steps or self.steps, change.seeds or self.seeds


@dataclasses.dataclass(frozen=True)
class Published:
    """Returns by environment that others report for an algorithm.

    A file in `PUBLISHED` holds the figures of one source: `who`, `source`, `commit`, `licence`, and
    `results`, each the `suite` it belongs to and the other fields.

    who: authors or code, for the table.
    steps: their environment steps; by environment where they differ.
    seeds: number of their runs.
    returns: means, or the return of each seed as a list.
    source: where the figures are found, and what differs from the suite.
    margins: half-widths of the 95 % intervals, by environment, where they are reported.
    deviations: standard deviations, by environment, where they are reported.
    versions: name and version of their environment, by environment of the suite.
    episodes: number of episodes behind each return of each seed; 0 where it is not reported.
    commit: commit of the repository that holds the figures; empty for a paper.
    licence: licence of that repository.
    elsewhere: whether the suite itself does not train the algorithm.
    """

    algorithm: str
    who: str
    steps: int | dict[str, int]
    seeds: int
    returns: dict[str, float | list[float]]
    source: str
    margins: dict[str, float] = dataclasses.field(default_factory=dict)
    deviations: dict[str, float] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    episodes: int | dict[str, int] = 0
    commit: str = ""
    licence: str = ""
    elsewhere: bool = False


@dataclasses.dataclass(frozen=True)
class Suite:
    """The environments and algorithms of a suite.

    episodes: number in each evaluation.
    longest: minutes beyond which a run is left out unless it is asked for.
    best: whether the page also has the best evaluation during training.
    last: number of evaluations at the end of a run whose mean is its result.
    """

    name: str
    title: str
    text: str
    episodes: int
    environments: dict[str, SuiteEnvironment]
    algorithms: dict[str, SuiteAlgorithm]
    published: tuple[Published, ...] = ()
    longest: float = math.inf
    best: bool = False
    last: int = 1


@dataclasses.dataclass(frozen=True)
class Run:
    """An algorithm in an environment, with all of its seeds: one run folder.

    too_long: whether it takes longer than the suite's `longest`.
    first: the run that it is warm-started from, which is to stand in the file `config.warm_start`.
    """

    algorithm: str
    environment: str
    config: Experiment
    minutes: float
    too_long: bool = False
    first: Experiment | None = None

    @property
    def folder(self) -> Path:
        return Path(self.config.out) / self.config.name


def read(name: str) -> Suite:
    """Return the suite of a YAML file, or the built-in one of that name.

    Raises:
        UserError: if there is no such suite, or its file is wrong.
    """
    path = Path(name) if configuration.is_file(name) else SUITES / f"{name}.yaml"
    if not path.exists():
        raise unknown("suite", name, sorted(x.stem for x in SUITES.glob("*.yaml")))
    data = configuration.load(path)
    fields = {x.name for x in dataclasses.fields(Suite)} - {"name"}
    for key in data:
        if key not in fields:
            raise unknown(f"key of the suite '{path}'", key, fields)
    make = lambda kind, what, values: {
        key: _make(kind, f"{what} '{key}' of '{path}'", value)
        for key, value in _mapping(f"{what} of '{path}'", values).items()
    }
    published = [
        _make(Published, f"a published result of '{path}'", x)
        for entry in _entries(path, data.pop("published", []))
        for x in (_figures(entry, path.stem) if isinstance(entry, str) else [entry])
    ]
    data["environments"] = make(SuiteEnvironment, "the environment", data.get("environments", {}))
    algorithms = dict(_mapping(f"the algorithms of '{path}'", data.get("algorithms", {})))
    for name, entry in algorithms.items():
        if "changes" in _mapping(f"the algorithm '{name}' of '{path}'", entry):
            changes = make(Change, f"what changes for '{name}' in", entry["changes"])
            entry = algorithms[name] = entry | {"changes": changes}
        if "first" in entry:
            first = _make(First, f"what '{name}' of '{path}' begins with", entry["first"])
            algorithms[name] = entry | {"first": first}
    data["algorithms"] = make(SuiteAlgorithm, "the algorithm", algorithms)
    for name, place in data["environments"].items():
        if place.score and place.score not in SCORES:
            raise unknown(f"score of the environment '{name}' of '{path}'", place.score, SCORES)
    for name, entry in data["algorithms"].items():
        for environment in (*entry.environments, *entry.changes):
            if environment not in data["environments"]:
                what = f"environment of '{name}' in the suite '{path.stem}'"
                raise unknown(what, environment, data["environments"])
    for one in published:
        what = f"of what '{one.who}' published, in '{path}'"
        if one.algorithm not in data["algorithms"] and not one.elsewhere:
            raise unknown(f"algorithm {what}", one.algorithm, data["algorithms"])
        for environment in (*one.returns, *one.margins, *one.deviations, *one.versions):
            if environment not in data["environments"]:
                raise unknown(f"environment {what}", environment, data["environments"])
    suite = _make(
        Suite, f"the suite '{path}'", data | {"name": path.stem, "published": tuple(published)}
    )
    if suite.last < 1:
        raise UserError(f"last is {suite.last} in '{path}'; it must be at least 1.")
    return suite


def _figures(name: str, suite: str) -> list[dict[str, Any]]:
    """Return the results for a suite that the file `name` in `PUBLISHED` holds."""
    path = PUBLISHED / f"{name}.yaml"
    if not path.exists():
        raise unknown(
            "file of published figures", name, sorted(x.stem for x in path.parent.glob("*.yaml"))
        )
    data = configuration.load(path)
    results = data.pop("results", [])
    return [
        data | {key: value for key, value in x.items() if key != "suite"}
        for x in results
        if x.get("suite") == suite
    ]


def _make(kind: type, what: str, values: Any) -> Any:
    known = typing.get_type_hints(kind)
    for key in _mapping(what, values):
        if key not in known:
            raise unknown(f"setting of {what}", key, known)
    try:
        return kind(**{k: configuration.convert(k, v, known[k]) for k, v in values.items()})
    except TypeError as error:
        raise UserError(f"In {what} something is missing: {error}.") from None
    except UserError as error:
        raise UserError(f"In {what}: {error}") from None


def _mapping(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{what} is {value!r}; it must consist of `name: value` lines.")
    return value


def _entries(path: Path, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"published of '{path}' is {value!r}; it must be a list.")
    return value


def runs(
    suite: Suite, algorithms: Sequence[str] = (), environments: Sequence[str] = (), seeds: int = 0
) -> list[Run]:
    """Return the chosen runs, or all, in the order of the suite.

    Raises:
        UserError: for names that are not in the suite.
    """
    for what, names, known in (
        ("algorithm", algorithms, suite.algorithms),
        ("environment", environments, suite.environments),
    ):
        for name in names:
            if name not in known:
                raise unknown(f"{what} of the suite '{suite.name}'", name, known)
    found = []
    for algorithm, entry in suite.algorithms.items():
        for environment in entry.environments or suite.environments:
            if (algorithms and algorithm not in algorithms) or (
                environments and environment not in environments
            ):
                continue
            change = entry.changes.get(environment, Change())
            steps, planned = entry.budget(environment)
            number = seeds or planned
            minutes = entry.minutes if change.minutes is None else change.minutes
            minutes *= number / planned
            place, suffix = suite.environments[environment], f"-{seeds}-seeds" if seeds else ""
            shared = {
                "env": place.env,
                "env_params": place.env_params,
                "wrappers": place.wrappers,
                "seeds": number,
                "evaluate_episodes": suite.episodes,
                "evaluate_greedy": place.greedy,
            }
            out = Path("runs") / "suites" / suite.name
            config = configuration.experiment(
                {
                    **shared,
                    "algorithm": entry.algorithm,
                    "steps": steps,
                    "evaluate_every": steps // EVALUATIONS,
                    "out": str(out),
                    "name": f"{run_folder.slug(algorithm)}-{run_folder.slug(environment)}{suffix}",
                    "agent": _lay_over(_lay_over(place.agent, entry.agent), change.agent),
                }
            )
            first = None
            if entry.first is not None:
                given = {
                    **shared,
                    "algorithm": entry.first.algorithm,
                    "steps": entry.first.steps,
                    "agent": _lay_over(place.agent, entry.first.agent),
                }
                first = configuration.experiment(given)
                path = out / "first" / f"{run_folder.name_by_settings(given)}.yaml"
                config = dataclasses.replace(config, warm_start=str(path))
            too_long = minutes > suite.longest
            found.append(Run(algorithm, environment, config, minutes, too_long, first))
    return found


def _lay_over(settings: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with those of `change` in their place."""
    found = dict(settings)
    for name, value in change.items():
        old = found.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _lay_over(old, value)
        found[name] = value
    return found
