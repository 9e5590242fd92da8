"""A benchmark's suite: its environments, the agents that are trained in them, and the runs this
makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration, run_folder
from jaxrl.runtime.configuration import Experiment

SUITES = Path(__file__).resolve().parent
EVALUATIONS = 20  # of a run, evenly spaced


@dataclasses.dataclass(frozen=True)
class World:
    """Where agents are trained. Scores from 0 at `low` to 1 at `high` are pooled over environments.

    metrics: what else the environment says of an episode that the page reports.
    strip: steps between two frames of a policy at work, of which the page shows a row; 0 for none.
    """

    env: str
    low: float
    high: float
    env_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    strip: int = 0


@dataclasses.dataclass(frozen=True)
class Entry:
    """An agent of a suite: how long it is trained, and where, if not everywhere. `minutes`: what a
    environment took on two cores of a common machine, for the plan."""

    algorithm: str
    steps: int
    seeds: int
    minutes: float
    agent: dict[str, Any] = dataclasses.field(default_factory=dict)
    environments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Published:
    """What others report, with their own budget."""

    who: str
    steps: int
    returns: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Suite:
    """Agents and environments of a benchmark. `episodes`: of each evaluation."""

    name: str
    title: str
    text: str
    episodes: int
    environments: dict[str, World]
    agents: dict[str, Entry]
    published: tuple[Published, ...] = ()


@dataclasses.dataclass(frozen=True)
class Run:
    """An agent in an environment, with all of its seeds: one run folder."""

    agent: str
    environment: str
    config: Experiment
    minutes: float

    @property
    def folder(self) -> Path:
        return Path(self.config.out) / self.config.name


def read(name: str) -> Suite:
    """The suite of a file, or of that name. Raises `UserError` for what is none."""
    path = Path(name) if configuration.is_file(name) else SUITES / f"{name}.yaml"
    if not path.exists():
        raise unknown("suite", name, sorted(x.stem for x in SUITES.glob("*.yaml")))
    data = configuration.load(path)
    fields = {x.name for x in dataclasses.fields(Suite)} - {"name"}
    for key in data:
        if key not in fields:
            raise unknown(f"key of the suite '{path}'", key, fields)
    make = lambda kind, what, values: {
        key: _made(kind, f"{what} '{key}' of '{path}'", value) for key, value in values.items()
    }
    published = [
        _made(Published, f"a published result of '{path}'", x) for x in data.pop("published", [])
    ]
    data["environments"] = make(World, "the environment", data.get("environments", {}))
    data["agents"] = make(Entry, "the agent", data.get("agents", {}))
    return _made(
        Suite, f"the suite '{path}'", data | {"name": path.stem, "published": tuple(published)}
    )


def _made(kind: type, what: str, values: Any) -> Any:
    known = {x.name: x for x in dataclasses.fields(kind)}
    for key in values:
        if key not in known:
            raise unknown(f"setting of {what}", key, known)
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except TypeError as error:
        raise UserError(f"Of {what} something is missing: {error}.") from None


def runs(
    suite: Suite, agents: Sequence[str] = (), environments: Sequence[str] = (), seeds: int = 0
) -> list[Run]:
    """What is trained, in the order of the suite. Raises `UserError` for names that are not in
    it."""
    for what, names, known in (
        ("agent", agents, suite.agents),
        ("environment", environments, suite.environments),
    ):
        for name in names:
            if name not in known:
                raise unknown(f"{what} of the suite '{suite.name}'", name, known)
    found = []
    for agent, entry in suite.agents.items():
        for environment in entry.environments or suite.environments:
            if environment not in suite.environments:
                raise unknown(
                    f"environment of '{agent}' in the suite '{suite.name}'",
                    environment,
                    suite.environments,
                )
            if (agents and agent not in agents) or (
                environments and environment not in environments
            ):
                continue
            number = seeds or entry.seeds
            place, more = suite.environments[environment], f"-{seeds}-seeds" if seeds else ""
            config = configuration.experiment(
                {
                    "algorithm": entry.algorithm,
                    "env": place.env,
                    "env_params": place.env_params,
                    "steps": entry.steps,
                    "seeds": number,
                    "evaluate_every": entry.steps // EVALUATIONS,
                    "evaluate_episodes": suite.episodes,
                    "out": str(Path("runs") / "benchmarks" / suite.name),
                    "name": f"{run_folder.slug(agent)}-{run_folder.slug(environment)}{more}",
                    "agent": entry.agent,
                }
            )
            found.append(Run(agent, environment, config, entry.minutes * number / entry.seeds))
    return found
