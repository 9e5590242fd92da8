"""Run folders, read without importing the code that they name, and grouped by their settings."""

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
from jaxrl.envs.wrappers import registry
from jaxrl.evaluation.statistics import final_scores
from jaxrl.runtime import configuration, log, run_folder
from jaxrl.runtime.members import SWEEP, Members, read_members

# Settings about where and how a run is done, not about what is learned.
ASIDE = {"seed", "seeds", "out", "name", "track", "devices", "mesh", "keep"} | {
    "log_every", "evaluate_every", "evaluate_episodes", "checkpoint_every", "record_every", "video"
}  # fmt: skip
MOST_NAMED = 3  # settings in a label

Settings = dict[str, Any]  # dotted name -> value


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder.

    `scores` [members, K] are evaluations after `steps` [K] environment steps of each member, NaN
    where there is none; `done` is the number of steps done so far.
    """

    folder: Path
    config: dict[str, Any]
    members: Members
    steps: np.ndarray
    scores: np.ndarray
    done: int
    summary: dict[str, Any]

    @property
    def is_finished(self) -> bool:
        return self.summary.get("finished") is True

    @property
    def state(self) -> str:
        if self.is_finished:
            return "finished"
        because = self.summary.get("stopped_because")
        return f"unfinished: {self.done:,} of {self.config['steps']:,} steps" + (
            f", stopped: {because}" if because else ""
        )

    @property
    def diverged_members(self) -> list[int]:
        """The members that diverged."""
        found = self.summary.get("diverged")
        return [int(i) for i in found if i.isdigit()] if isinstance(found, dict) else []

    @property
    def picture(self) -> Path | None:
        """The video or picture of an episode that `jaxrl evaluate` made, if any."""
        paths = (self.folder / f"episode.{kind}" for kind in ("mp4", "gif", "png"))
        return next((path for path in paths if path.is_file()), None)

    @property
    def commands(self) -> list[str]:
        """The commands that train the run again and, if it is not finished, resume it."""
        verb = "sweep" if self.members.hyper else "train"
        words = ["jaxrl", verb, str(self.folder / "config.yaml")]
        for name, values in _grid(self.members).items():
            words += ["--vary", f"agent.{name}={','.join(map(repr, values))}"]
        if self.config.get("name"):
            words += ["--name", f"{self.config['name']}-again"]
        if configuration.foreign_code(self.config):
            words += ["--trust"]
        found = [shlex.join(words)] if verb == "train" or "--vary" in words else []
        if not self.is_finished:
            found += [run_folder.resume_command(self.folder)]
        return found


@dataclasses.dataclass(frozen=True)
class Group:
    """Members of runs that differ in their seeds alone.

    label: short, and the same in another environment, except for settings that differ between
        environments.
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
    def num_diverged(self) -> int:
        return sum(i in run.diverged_members for run, i in self.members)

    @property
    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        steps = np.unique(np.concatenate([run.steps for run, _ in self.members]))
        values = np.full((len(self.members), len(steps)), np.nan)
        for row, (run, i) in zip(values, self.members, strict=True):
            row[np.searchsorted(steps, run.steps)] = run.scores[i]
        return steps, values

    @property
    def scores(self) -> np.ndarray:
        """The last evaluation of each seed [seeds].

        A seed without one, since it diverged, has the lowest of all in its run's part of the group.
        A run without evaluations has no scores.
        """
        parts = [run.scores[[i for other, i in self.members if other is run]] for run in self.runs]
        kept = [final_scores(x) for x in parts if np.isfinite(x).any()]
        return np.concatenate([np.zeros(0), *kept])


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of a sweep's runs, or `folder` itself if it is not a sweep.

    Raises:
        UserError: for a sweep that was cut into segments, whose runs continue one another.
    """
    if not (folder / SWEEP).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/members.json"))
    if any(read_members(run).parents for run in found):
        raise UserError(
            f"The runs in '{folder}' are segments of one another; name those to be compared."
        )
    return found


def read(folder: str | Path, score: str = "return") -> Run:
    """Return the run in `folder` with the evaluations of the metric `score`.

    Code that it names is not imported.

    Raises:
        UserError: if it is not a run's folder, if its settings or members cannot be read or do not
            match its log, or if no evaluation has the metric `score`.
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
                f"'{folder / 'config.yaml'}' is not a run's configuration: its {name} is "
                f"{config.get(name)!r}."
            )
    members = read_members(folder)
    every = log.read(folder / "metrics.jsonl", warn=lambda warning: None)
    rows = [row for row in every if row["kind"] == "evaluation"]
    known = dict.fromkeys(name for row in rows for name in row["metrics"])
    if rows and m.name_in(known, score) not in known:
        raise unknown(f"metric of the evaluations in '{folder}'", score, sorted(known))
    steps, scores = log.series(rows, score)
    if not steps.size:
        scores = np.zeros((len(members), 0))
    if len(scores) != len(members):
        raise UserError(
            f"The log of '{folder}' has {len(scores)} members, but its members.json {len(members)}."
        )
    done = max((row["steps"] for row in every), default=0)
    return Run(folder, config, members, steps, scores, done, run_folder.summary(folder))


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group the members of `runs` by environment and settings.

    Each group's label is unique in its environment. A seed that was trained twice under the same
    settings, for example by two versions, is in a group for its own folder.
    """
    found: list[Group] = []
    for run in runs:
        for members in run.members.by_setting().values():
            settings = _settings(run, members[0])
            mine = tuple((run, i) for i in members)
            seeds = {run.members.labels[i]["seed"] for i in members}
            for k, group in enumerate(found):
                taken = {other.members.labels[i]["seed"] for other, i in group.members}
                if group.settings == settings and not taken & seeds:
                    found[k] = dataclasses.replace(group, members=group.members + mine)
                    break
            else:
                found.append(Group(_evaluation_label(run.config), settings, mine))
    return _add_labels(found)


def differing_settings(groups: Iterable[Group]) -> list[str]:
    """Return the names of the settings in which the groups differ."""
    first, *others = [group.settings for group in groups]
    names = [x[0] for other in others for x in configuration.differences(first, other)]
    return list(dict.fromkeys(names))


def environment_label(
    env: str, parameters: Mapping[str, Any], wrappers: Sequence[registry.Named] = ()
) -> str:
    """Return an environment with its settings and wrappers, such as `door_key (size 6)`."""
    words = [f"{key} {format_value(value)}" for key, value in parameters.items()]
    words += [registry.label([wrapper]) for wrapper in wrappers]
    return f"{env} ({', '.join(words)})" if words else env


def _evaluation_label(config: dict[str, Any]) -> str:
    name, parameters = config["env"], config["env_params"]
    if config.get("evaluate_env"):
        name, parameters = config["evaluate_env"], {}
    parameters = parameters | config["evaluate_env_params"]
    return environment_label(name, parameters, config.get("wrappers", ()))


def _settings(run: Run, member: int) -> Settings:
    """Return the settings that `member` was trained with, without seeds and folders."""
    config = copy.deepcopy(run.config)
    for name, value in run.members.labels[member].items():
        if name != "seed":
            *path, last = name.split(".")
            group = config["agent"]
            for part in path:
                group = group.setdefault(part, {})
            group[last] = value
    return _flatten({name: value for name, value in config.items() if name not in ASIDE})


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Settings:
    found: Settings = {}
    for name, value in data.items():
        found |= (
            _flatten(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else {prefix + name: value}
        )
    return found


def _add_labels(groups: list[Group]) -> list[Group]:
    """Return `groups` with labels: the algorithm, then differing settings and folders if needed.

    Settings are added where an environment has several groups of one algorithm.
    """
    names: dict[str, list[str]] = {}
    by_algorithm = lambda group: (group.settings["algorithm"], group.env)
    for (algorithm, _), some in itertools.groupby(sorted(groups, key=by_algorithm), by_algorithm):
        names.setdefault(algorithm, []).extend(differing_settings(some))
    labels = []
    for group in groups:
        algorithm = group.settings["algorithm"]
        parts = [
            f"{name.rpartition('.')[2]} {format_value(group.settings.get(name))}"
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


def format_value(value: Any) -> str:
    """Format a setting's value in few words."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(format_value, value)) if isinstance(value, list) else str(value)


def _grid(members: Members) -> dict[str, list[float]]:
    """Return the values that a sweep varied, if its members are all their combinations."""
    names = [name for name in members.labels[0] if name != "seed"]
    values = {name: list(dict.fromkeys(x[name] for x in members.labels)) for name in names}
    seeds = {label["seed"] for label in members.labels}
    whole = len(seeds) * int(np.prod([len(x) for x in values.values()])) == len(members)
    return values if whole else {}
