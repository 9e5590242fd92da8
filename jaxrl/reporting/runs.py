"""Run folders, read without importing what they name, and grouped by what differs."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError, unknown
from jaxrl.evaluation.statistics import final_scores
from jaxrl.runtime import configuration, log, run_folder
from jaxrl.runtime.members import SWEEP, Members, members_of

# About where and how a run is done, not about what is learned.
ASIDE = {"seed", "seeds", "out", "name", "track", "devices", "keep"} | {
    "log_every", "evaluate_every", "evaluate_episodes", "checkpoint_every"
}  # fmt: skip
MOST_NAMED = 3  # settings in a label

Settings = dict[str, Any]  # dotted name -> value


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder. `scores` [members, K] after `steps` [K] environment steps of each, NaN where
    there is none; `done`: how many steps it has come to."""

    folder: Path
    config: dict[str, Any]
    members: Members
    steps: np.ndarray
    scores: np.ndarray
    done: int
    summary: dict[str, Any]

    @property
    def finished(self) -> bool:
        return self.summary.get("finished") is True

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        because = self.summary.get("stopped_because")
        return f"unfinished: {self.done:,} of {self.config['steps']:,} steps" + (
            f", stopped: {because}" if because else ""
        )

    @property
    def diverged(self) -> list[int]:
        """The members that did."""
        found = self.summary.get("diverged")
        return [int(i) for i in found if i.isdigit()] if isinstance(found, dict) else []

    @property
    def picture(self) -> Path | None:
        """One of an episode, by `jaxrl evaluate`."""
        paths = (self.folder / f"episode.{kind}" for kind in ("gif", "png"))
        return next((path for path in paths if path.is_file()), None)

    @property
    def commands(self) -> list[str]:
        """What trains it anew and, where it is not finished, what goes on with it."""
        verb = "sweep" if self.members.hyper else "train"
        words = ["jaxrl", verb, str(self.folder / "config.yaml")]
        for name, values in _grid(self.members).items():
            words += ["--vary", f"agent.{name}={','.join(map(repr, values))}"]
        if self.config.get("name"):
            words += ["--name", f"{self.config['name']}-again"]
        if configuration.foreign(self.config):
            words += ["--trust"]
        found = [shlex.join(words)] if verb == "train" or "--vary" in words else []
        if not self.finished:
            found += [f"jaxrl {verb} {run_folder.to_resume(self.folder)}"]
        return found


@dataclasses.dataclass(frozen=True)
class Group:
    """Members of runs that differ by their seeds alone.

    label: short, and the same in another environment, but for what differs by environment alone.
    curves: [seeds, K] after `steps` [K], NaN where a seed has no evaluation.
    """

    env: str
    settings: Settings
    members: tuple[tuple[Run, int], ...]
    label: str = ""

    @property
    def runs(self) -> list[Run]:
        return list({run.folder: run for run, _ in self.members}.values())

    @property
    def diverged(self) -> int:
        return sum(i in run.diverged for run, i in self.members)

    @property
    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        steps = np.unique(np.concatenate([run.steps for run, _ in self.members]))
        values = np.full((len(self.members), len(steps)), np.nan)
        for row, (run, i) in zip(values, self.members, strict=True):
            row[np.searchsorted(steps, run.steps)] = run.scores[i]
        return steps, values

    @property
    def scores(self) -> np.ndarray:
        """The last evaluation of each seed [seeds]; where it has none since it diverged, the lowest
        of all in its run's part of the group. None of a run without evaluations."""
        parts = [run.scores[[i for other, i in self.members if other is run]] for run in self.runs]
        kept = [final_scores(x) for x in parts if np.isfinite(x).any()]
        return np.concatenate([np.zeros(0), *kept])


def within(folder: Path) -> list[Path]:
    """The folders of a sweep's runs; of any other the folder itself. Raises `UserError` for a sweep
    that was cut into segments, whose runs go on from one another."""
    if not (folder / SWEEP).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/members.json"))
    if any(members_of(run).parents for run in found):
        raise UserError(
            f"The runs in '{folder}' are segments of one another; name those to be compared."
        )
    return found


def read(folder: str | Path, score: str = "return") -> Run:
    """The run in `folder`, and its evaluations' metric `score`.

    Nothing that it names is imported. Raises `UserError` if it is no run's folder, if its settings
    or members cannot be read, or do not fit its log, and for a `score` that no evaluation has.
    """
    folder = run_folder.check(folder)
    config = configuration.load(folder / "config.yaml")
    kinds = {"algorithm": str, "env": str, "steps": int, "agent": dict}
    for name in ("env_params", "evaluate_env_params"):
        kinds[name] = dict
        config.setdefault(name, {})
    for name, kind in kinds.items():
        if not isinstance(config.get(name), kind):
            raise UserError(
                f"'{folder / 'config.yaml'}' is not a run's: its {name} is {config.get(name)!r}."
            )
    members = members_of(folder)
    every = log.read(folder / "metrics.jsonl", warn=lambda said: None)
    rows = [row for row in every if row["kind"] == "evaluation"]
    known = dict.fromkeys(name for row in rows for name in row["metrics"])
    if rows and m.name_in(known, score) not in known:
        raise unknown(f"metric of the evaluations in '{folder}'", score, sorted(known))
    steps, scores = log.series(rows, score)
    if not steps.size:
        scores = np.zeros((len(members), 0))
    if len(scores) != len(members):
        raise UserError(
            f"The log of '{folder}' has {len(scores)} members, and its members.json {len(members)}."
        )
    done = max((row["steps"] for row in every), default=0)
    return Run(folder, config, members, steps, scores, done, run_folder.summary(folder))


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The members of `runs` by environment and settings, each group with a label that no other in
    its environment has. A seed that was trained twice under the same settings, by two versions say,
    is in a group of its own folder's."""
    found: list[Group] = []
    for run in runs:
        for members in run.members.settings().values():
            settings = _settings(run, members[0])
            mine = tuple((run, i) for i in members)
            seeds = {run.members.labels[i]["seed"] for i in members}
            for k, group in enumerate(found):
                taken = {other.members.labels[i]["seed"] for other, i in group.members}
                if group.settings == settings and not taken & seeds:
                    found[k] = dataclasses.replace(group, members=group.members + mine)
                    break
            else:
                found.append(Group(_evaluated_in(run.config), settings, mine))
    return _labeled(found)


def differing(groups: Iterable[Group]) -> list[str]:
    """The names of the settings that not all groups have alike."""
    first, *others = [group.settings for group in groups]
    names = [x[0] for other in others for x in configuration.differences(first, other)]
    return list(dict.fromkeys(names))


def place(env: str, parameters: Mapping[str, Any]) -> str:
    """An environment in words, such as `door_key (size 6)`."""
    words = ", ".join(f"{key} {said(value)}" for key, value in parameters.items())
    return f"{env} ({words})" if words else env


def _evaluated_in(config: dict[str, Any]) -> str:
    name, parameters = config["env"], config["env_params"]
    if config.get("evaluate_env"):
        name, parameters = config["evaluate_env"], {}
    return place(name, parameters | config["evaluate_env_params"])


def _settings(run: Run, member: int) -> Settings:
    """What `member` was trained under, seeds and folders aside."""
    config = copy.deepcopy(run.config)
    for name, value in run.members.labels[member].items():
        if name != "seed":
            *path, last = name.split(".")
            place = config["agent"]
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value
    return _flat({name: value for name, value in config.items() if name not in ASIDE})


def _flat(data: Mapping[str, Any], prefix: str = "") -> Settings:
    found: Settings = {}
    for name, value in data.items():
        found |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return found


def _labeled(groups: list[Group]) -> list[Group]:
    """`groups` with the algorithm as the label and, where an environment has several of one
    algorithm, the settings in which these differ; then the folder."""
    names: dict[str, list[str]] = {}
    by_algorithm = lambda group: (group.settings["algorithm"], group.env)
    for (algorithm, _), some in itertools.groupby(sorted(groups, key=by_algorithm), by_algorithm):
        names.setdefault(algorithm, []).extend(differing(some))
    labels = []
    for group in groups:
        algorithm = group.settings["algorithm"]
        parts = [
            f"{name.rpartition('.')[2]} {said(group.settings.get(name))}"
            for name in dict.fromkeys(names[algorithm])
        ]
        more = ["..."] if len(parts) > MOST_NAMED else []
        labels.append(", ".join([algorithm, *parts[:MOST_NAMED], *more]))
    for more in (
        [f" ({group.runs[0].folder.name})" for group in groups],
        [f" {i}" for i in range(1, len(groups) + 1)],
    ):
        places = [(group.env, label) for group, label in zip(groups, labels, strict=True)]
        labels = [
            label + extra if places.count(place) > 1 else label
            for label, extra, place in zip(labels, more, places, strict=True)
        ]
    return [
        dataclasses.replace(group, label=label) for group, label in zip(groups, labels, strict=True)
    ]


def said(value: Any) -> str:
    """A setting's value in short words."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(said, value)) if isinstance(value, list) else str(value)


def _grid(members: Members) -> dict[str, list[float]]:
    """The values that a sweep varied, if its members are all of their combinations."""
    names = [name for name in members.labels[0] if name != "seed"]
    values = {name: list(dict.fromkeys(x[name] for x in members.labels)) for name in names}
    seeds = {label["seed"] for label in members.labels}
    whole = len(seeds) * int(np.prod([len(x) for x in values.values()])) == len(members)
    return values if whole else {}
