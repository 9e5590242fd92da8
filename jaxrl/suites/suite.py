"""A suite: its environments, the algorithms that are trained in them, and the resulting runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration, run_folder
from jaxrl.runtime.configuration import Experiment

SUITES = Path(__file__).resolve().parent
EVALUATIONS = 20  # of each run, evenly spaced


@dataclasses.dataclass(frozen=True)
class SuiteEnvironment:
    """An environment of a suite. Scores from 0 at `low` to 1 at `high` are pooled over all of them.

    random: return of random play, from which the page counts the seeds that did not learn; it
        counts none without it.
    metrics: other metrics of an episode that the page reports.
    strip: number of steps between two frames of the page's strip of a policy; 0 for no strip.
    """

    env: str
    low: float
    high: float
    random: float | None = None
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    wrappers: tuple[Any, ...] = ()
    metrics: tuple[str, ...] = ()
    strip: int = 0


@dataclasses.dataclass(frozen=True)
class SuiteAlgorithm:
    """An algorithm of a suite with its settings, and how long and where it is trained.

    minutes: estimated time of a run on two cores of an ordinary machine, for the plan.
    environments: names of the environments; empty for all.
    """

    algorithm: str
    steps: int
    seeds: int
    minutes: float
    agent: dict[str, Any] = dataclasses.field(default_factory=dict)
    environments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Published:
    """Returns by environment that others report for an algorithm of the suite.

    who: authors or code, for the table.
    steps, seeds: their budget.
    source: where the figures are found, and what differs from the suite.
    margins: half-widths of the 95 % intervals, by environment, where they are reported.
    """

    algorithm: str
    who: str
    steps: int
    seeds: int
    returns: dict[str, float]
    source: str
    margins: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Suite:
    """The environments and algorithms of a suite. `episodes`: number in each evaluation."""

    name: str
    title: str
    text: str
    episodes: int
    environments: dict[str, SuiteEnvironment]
    algorithms: dict[str, SuiteAlgorithm]
    published: tuple[Published, ...] = ()


@dataclasses.dataclass(frozen=True)
class Run:
    """An algorithm in an environment, with all of its seeds: one run folder."""

    algorithm: str
    environment: str
    config: Experiment
    minutes: float

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
        key: _make(kind, f"{what} '{key}' of '{path}'", value) for key, value in values.items()
    }
    published = [
        _make(Published, f"a published result of '{path}'", x) for x in data.pop("published", [])
    ]
    data["environments"] = make(SuiteEnvironment, "the environment", data.get("environments", {}))
    data["algorithms"] = make(SuiteAlgorithm, "the algorithm", data.get("algorithms", {}))
    for one in published:
        what = f"of what '{one.who}' published, in '{path}'"
        if one.algorithm not in data["algorithms"]:
            raise unknown(f"algorithm {what}", one.algorithm, data["algorithms"])
        for environment in (*one.returns, *one.margins):
            if environment not in data["environments"]:
                raise unknown(f"environment {what}", environment, data["environments"])
    return _make(
        Suite, f"the suite '{path}'", data | {"name": path.stem, "published": tuple(published)}
    )


def _make(kind: type, what: str, values: Any) -> Any:
    known = {x.name: x for x in dataclasses.fields(kind)}
    for key in values:
        if key not in known:
            raise unknown(f"setting of {what}", key, known)
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except TypeError as error:
        raise UserError(f"In {what} something is missing: {error}.") from None


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
            if environment not in suite.environments:
                raise unknown(
                    f"environment of '{algorithm}' in the suite '{suite.name}'",
                    environment,
                    suite.environments,
                )
            if (algorithms and algorithm not in algorithms) or (
                environments and environment not in environments
            ):
                continue
            number = seeds or entry.seeds
            place, suffix = suite.environments[environment], f"-{seeds}-seeds" if seeds else ""
            config = configuration.experiment(
                {
                    "algorithm": entry.algorithm,
                    "env": place.env,
                    "env_params": place.env_params,
                    "wrappers": place.wrappers,
                    "steps": entry.steps,
                    "seeds": number,
                    "evaluate_every": entry.steps // EVALUATIONS,
                    "evaluate_episodes": suite.episodes,
                    "out": str(Path("runs") / "suites" / suite.name),
                    "name": f"{run_folder.slug(algorithm)}-{run_folder.slug(environment)}{suffix}",
                    "agent": entry.agent,
                }
            )
            found.append(Run(algorithm, environment, config, entry.minutes * number / entry.seeds))
    return found
