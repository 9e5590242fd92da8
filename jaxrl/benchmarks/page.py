"""The page of a suite, from its records: a table, learning curves, and how those who walk do it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.benchmarks.suite import Suite, runs
from jaxrl.evaluation.plots import learning_curves
from jaxrl.evaluation.statistics import final_scores, interquartile_interval
from jaxrl.runtime import configuration, log, run_folder

Record = dict[str, Any]

OLD = "†"


def curve(found: Record) -> np.ndarray:
    """The returns of a record [seeds, evaluations], NaN from where on a seed diverged."""
    return np.asarray(found["returns"], np.float64)


def finals(found: Record) -> np.ndarray:
    """The last evaluation's return of each seed; the lowest of all where a seed diverged."""
    return final_scores(curve(found))


def outdated(suite: Suite, records: Sequence[Record]) -> set[tuple[str, str]]:
    """Agents and worlds whose record is of other settings than the suite has now. A setting that
    only one of the two knows (the code has changed since) is no difference."""
    now = {(run.agent, run.world): configuration.to_dict(run.config) for run in runs(suite)}
    found = set()
    for x in records:
        place = x["agent"], x["world"]
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
    """The suite's page in `folder`, and a picture of each world's learning curves beside it."""
    known = {(x["agent"], x["world"]): x for x in records}
    if not known:
        return
    old = outdated(suite, records)
    lines = [
        "<!-- Written by `jaxrl benchmark` from the records; do not edit. -->",
        "",
        f"# {suite.title}",
        "",
        suite.text.strip(),
        "",
        f"Greedy returns of {suite.episodes} episodes after the last step: the interquartile mean "
        "over seeds and its 95 % interval (stratified bootstrap; with so few seeds it is too "
        "narrow). All worlds are pooled with scores from 0 to 1 between "
        + ", ".join(f"{x.low:g} and {x.high:g} ({name})" for name, x in suite.worlds.items())
        + ".",
        "",
        "| agent | steps | seeds | " + " | ".join(suite.worlds) + " | all |",
        "| --- |" + " ---: |" * (len(suite.worlds) + 3),
    ]
    for agent in suite.agents:
        mine = {world: x for (who, world), x in known.items() if who == agent}
        if mine:
            lines.append(row(suite, agent, mine, {world for who, world in old if who == agent}))
    for one in suite.published:
        cells = [f"{one.returns[w]:g}" if w in one.returns else "" for w in suite.worlds]
        lines.append(f"| *{one.who}* | {one.steps:,} | | " + " | ".join(cells) + " | |")
    if old:
        lines += ["", f"{OLD} Of settings that the suite no longer has; to be trained again."]
    for world in suite.worlds:
        curves = {
            f"{agent} {OLD}" if (agent, place) in old else agent: (x["steps"], curve(x))
            for (agent, place), x in known.items()
            if place == world
        }
        if curves:
            picture = f"{suite.name}-{world}.svg"
            where = folder / picture
            learning_curves(curves, where, title=world, ylabel="greedy return", robust=True)
            lines += ["", f"## {world}", "", f"![Learning curves in {world}]({picture})"]
            lines += behaviour(suite, world, [x for x in known.values() if x["world"] == world])
    lines += ["", "## What made them", "", *made_by(known.values())]
    (folder / f"{suite.name}.md").write_text("\n".join(lines) + "\n")


def strip_of(suite: Suite, agent: str, world: str) -> str:
    """The name of the picture of an agent at work."""
    return f"{suite.name}-{world}-{run_folder.slug(agent)}.png"


def behaviour(suite: Suite, world: str, found: Sequence[Record]) -> list[str]:
    """What a world says of its last episodes, a row for each agent, and a strip of each."""
    place, lines = suite.worlds[world], []
    if place.metrics:
        lines += ["", "| agent | " + " | ".join(place.metrics) + " |"]
        lines += ["| --- |" + " ---: |" * len(place.metrics)]
        for one in found:
            values = [np.asarray(one["metrics"][name], np.float64) for name in place.metrics]
            cells = " | ".join(estimate(x, "{:.2f}") for x in values)
            lines.append(f"| {one['agent']} | {cells} |")
    for one in found if place.strip else []:
        picture = strip_of(suite, one["agent"], world)
        lines += ["", f"{one['agent']}, every {place.strip} steps:", ""]
        lines += [f"![{one['agent']} in {world}]({picture})"]
    return lines


def row(suite: Suite, agent: str, mine: dict[str, Record], old: Set[str]) -> str:
    """A line of the table: one world each, and all of them on their common scale. `old` are the
    worlds whose settings are no longer the suite's: they are marked, and not pooled."""
    cells, scores = [], []
    for world, place in suite.worlds.items():
        if world not in mine:
            cells.append("")
            continue
        values = finals(mine[world])
        cells.append(estimate(values, "{:.3g}") + (f" {OLD}" if world in old else ""))
        if world not in old:
            scores.append((values - place.low) / (place.high - place.low))
    first = next((x for world, x in mine.items() if world not in old), next(iter(mine.values())))
    whole = len(scores) == len(suite.worlds) and len({len(x) for x in scores}) == 1
    together = estimate(np.stack(scores, -1), "{:.2f}") if whole and len(scores) > 1 else ""
    steps, seeds = first["config"]["steps"], first["config"]["seeds"]
    return f"| {agent} | {steps:,} | {seeds} | " + " | ".join(cells) + f" | {together} |"


def estimate(scores: np.ndarray, form: str) -> str:
    """The interquartile mean of scores [seeds] or [seeds, worlds] with its interval."""
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
