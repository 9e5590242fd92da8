"""The page of a suite, from its records: a table, learning curves, and how those who walk do it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.evaluation.curve_plots import learning_curves
from jaxrl.evaluation.statistics import final_scores, interquartile_interval
from jaxrl.runtime import configuration, log, run_folder
from jaxrl.suites.suite import Suite, runs

Record = dict[str, Any]

OLD = "†"


def curve(found: Record) -> np.ndarray:
    """The returns of a record [seeds, evaluations], NaN from where on a seed diverged."""
    return np.asarray(found["returns"], np.float64)


def finals(found: Record) -> np.ndarray:
    """The last evaluation's return of each seed; the lowest of all where a seed diverged."""
    return final_scores(curve(found))


def outdated(suite: Suite, records: Sequence[Record]) -> set[tuple[str, str]]:
    """Agents and environments whose record is of other settings than the suite has now. A setting
    that
    only one of the two knows (the code has changed since) is no difference."""
    now = {(run.agent, run.environment): configuration.to_dict(run.config) for run in runs(suite)}
    found = set()
    for x in records:
        place = x["agent"], x["environment"]
        new, old = _settings(log.jsonable(now.get(place, {}))), _settings(x["config"])
        if any(new[name] != old[name] for name in new.keys() & old.keys()):
            found.add(place)
    return found


def _settings(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value."""
    if not isinstance(config, dict):
        return {prefix: config}
    found = (_settings(value, f"{prefix}.{name}") for name, value in config.items())
    return {name: value for part in found for name, value in part.items()}


def write(suite: Suite, records: Sequence[Record], folder: Path) -> None:
    """The suite's page in `folder`, and a picture of each environment's learning curves beside
    it."""
    known = {(x["agent"], x["environment"]): x for x in records}
    if not known:
        return
    old = outdated(suite, records)
    lines = [
        "<!-- Written by `jaxrl suite` from the records; do not edit. -->",
        "",
        f"# {suite.title}",
        "",
        suite.text.strip(),
        "",
        f"Greedy returns of {suite.episodes} episodes after the last step: the interquartile mean "
        "over seeds and its 95 % interval (stratified bootstrap; with so few seeds it is too "
        "narrow). All environments are pooled with scores from 0 to 1 between "
        + ", ".join(f"{x.low:g} and {x.high:g} ({name})" for name, x in suite.environments.items())
        + ".",
        "",
        "| agent | steps | seeds | " + " | ".join(suite.environments) + " | all |",
        "| --- |" + " ---: |" * (len(suite.environments) + 3),
    ]
    for agent in suite.agents:
        mine = {environment: x for (who, environment), x in known.items() if who == agent}
        if mine:
            lines.append(
                row(suite, agent, mine, {environment for who, environment in old if who == agent})
            )
    for one in suite.published:
        cells = [f"{one.returns[w]:g}" if w in one.returns else "" for w in suite.environments]
        lines.append(f"| *{one.who}* | {one.steps:,} | | " + " | ".join(cells) + " | |")
    if old:
        lines += ["", f"{OLD} Of settings that the suite no longer has; to be trained again."]
    for environment in suite.environments:
        curves = {
            f"{agent} {OLD}" if (agent, place) in old else agent: (x["steps"], curve(x))
            for (agent, place), x in known.items()
            if place == environment
        }
        if curves:
            picture = f"{suite.name}-{environment}.svg"
            where = folder / picture
            learning_curves(curves, where, title=environment, ylabel="greedy return", robust=True)
            lines += [
                "",
                f"## {environment}",
                "",
                f"![Learning curves in {environment}]({picture})",
            ]
            lines += behavior(
                suite, environment, [x for x in known.values() if x["environment"] == environment]
            )
    lines += ["", "## What made them", "", *made_by(known.values())]
    (folder / f"{suite.name}.md").write_text("\n".join(lines) + "\n")


def strip_of(suite: Suite, agent: str, environment: str) -> str:
    """The name of the picture of an agent at work."""
    return f"{suite.name}-{environment}-{run_folder.slug(agent)}.png"


def behavior(suite: Suite, environment: str, found: Sequence[Record]) -> list[str]:
    """What an environment says of its last episodes, a row for each agent, and a strip of each."""
    place, lines = suite.environments[environment], []
    if place.metrics:
        lines += ["", "| agent | " + " | ".join(place.metrics) + " |"]
        lines += ["| --- |" + " ---: |" * len(place.metrics)]
        for one in found:
            values = [np.asarray(one["metrics"][name], np.float64) for name in place.metrics]
            cells = " | ".join(estimate(x, "{:.2f}") for x in values)
            lines.append(f"| {one['agent']} | {cells} |")
    for one in found if place.strip else []:
        picture = strip_of(suite, one["agent"], environment)
        lines += ["", f"{one['agent']}, every {place.strip} steps:", ""]
        lines += [f"![{one['agent']} in {environment}]({picture})"]
    return lines


def row(suite: Suite, agent: str, mine: dict[str, Record], old: Set[str]) -> str:
    """A line of the table: one environment each, and all of them on their common scale. `old` are
    the environments whose settings are no longer the suite's: they are marked, and not pooled."""
    cells, scores = [], []
    for environment, place in suite.environments.items():
        if environment not in mine:
            cells.append("")
            continue
        values = finals(mine[environment])
        cells.append(estimate(values, "{:.3g}") + (f" {OLD}" if environment in old else ""))
        if environment not in old:
            scores.append((values - place.low) / (place.high - place.low))
    first = next(
        (x for environment, x in mine.items() if environment not in old), next(iter(mine.values()))
    )
    whole = len(scores) == len(suite.environments) and len({len(x) for x in scores}) == 1
    together = estimate(np.stack(scores, -1), "{:.2f}") if whole and len(scores) > 1 else ""
    steps, seeds = first["config"]["steps"], first["config"]["seeds"]
    return f"| {agent} | {steps:,} | {seeds} | " + " | ".join(cells) + f" | {together} |"


def estimate(scores: np.ndarray, form: str) -> str:
    """The interquartile mean of scores [seeds] or [seeds, environments] with its interval."""
    found = interquartile_interval(scores)
    interval = f" [{form}, {form}]" if np.isfinite(found.low) else ""
    return (form + interval).format(*found)


def made_by(found: Any) -> list[str]:
    """The command, versions and hours of the records."""
    found = list(found)
    hours = sum(x["seconds"]["training"] + x["seconds"]["compiling"] for x in found) / 3600
    versions = sorted({f"jax {x['versions']['jax']}" for x in found})
    commits = sorted({x["commit"] for x in found})
    return [
        f"{len(found)} runs, {hours:.1f} hours, {', '.join(versions)}, commits "
        f"{', '.join(commits)}. Settings and every seed's curve are in the file of the same name "
        "that ends in `.json`.",
    ]
