"""The page of a suite, from its records: a table, learning curves, strips of policies at work."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.evaluation.curve_plots import learning_curves
from jaxrl.evaluation.statistics import final_scores, interquartile_interval
from jaxrl.runtime import configuration, files, log, run_folder
from jaxrl.suites.suite import Change, Published, Run, Suite, runs

Record = dict[str, Any]

OLD = "†"
UNKNOWN = "unknown"  # in place of a setting that a record does not have
# Part of the way from random play to the best seed beyond which a seed has learned something.
LEARNED = 0.1


def curve(found: Record) -> np.ndarray:
    """Return the returns of a record [seeds, evaluations], NaN after a seed diverged."""
    return np.asarray(found["returns"], np.float64)


def finals(found: Record, last: int = 1) -> np.ndarray:
    """Return each seed's mean return over the `last` evaluations. One that diverged
    counts as the lowest return of all seeds until then."""
    returns = curve(found)
    count = returns.shape[-1]
    ends = range(max(count - last, 0) + 1, count + 1)
    return np.mean([final_scores(returns[:, :end]) for end in ends], axis=0)


def count_failures(values: np.ndarray, *, random: float, best: float) -> int:
    """Return the number of seeds that did not learn.

    Their returns are at most the share `LEARNED` of the way from random play to the best seed.

    Args:
        values: return of each seed in the last evaluation, [seeds].
        random: return of random play in the environment.
        best: highest last return of any seed of any algorithm of the suite in the environment.
    """
    return int((values <= random + LEARNED * (best - random)).sum())


def outdated_records(
    suite: Suite, records: Sequence[Record]
) -> dict[tuple[str, str], dict[str, tuple[Any, Any]]]:
    """Return what differs between a record's settings and the suite's, where something does.

    A setting that only one of the two knows (the code has changed since) is no difference, unless
    the suite names it.

    Returns:
        (algorithm, environment) -> setting's dotted name -> (value in the record or `UNKNOWN`, in
        the suite).
    """
    now = {
        (run.algorithm, run.environment): configuration.to_dict(run.config) for run in runs(suite)
    }
    found = {}
    for x in records:
        key = x["algorithm"], x["environment"]
        new, old = _flatten(log.to_jsonable(now.get(key, {}))), _flatten(x["config"])
        differences = {
            name: (value, new[name])
            for name, value in old.items()
            if name in new and new[name] != value
        }
        differences |= {
            name: (UNKNOWN, new[name])
            for name in _own_settings(suite, *key)
            if name in new and name not in old
        }
        if differences:
            found[key] = differences
    return found


def _own_settings(suite: Suite, algorithm: str, environment: str) -> list[str]:
    """Return the dotted names of the settings that the suite itself gives."""
    entry, place = suite.algorithms.get(algorithm), suite.environments.get(environment)
    if entry is None or place is None:
        return []
    given = place.agent, entry.agent, entry.changes.get(environment, Change()).agent
    return [name for agent in given for name in _flatten({"agent": agent})]


def _flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return the settings of nested dicts by their dotted names."""
    if not isinstance(config, dict):
        return {prefix: config}
    parent = f"{prefix}." if prefix else ""
    found = (_flatten(value, f"{parent}{name}") for name, value in config.items())
    return {name: value for part in found for name, value in part.items()}


def policies(suite: Suite) -> str:
    """Say which policies the returns of the suite are of."""
    sampled = [name for name, place in suite.environments.items() if not place.greedy]
    if len(sampled) == len(suite.environments):
        return "Returns with sampled actions"
    return "Greedy returns" + (f" (sampled actions in {', '.join(sampled)})" if sampled else "")


def when(suite: Suite) -> str:
    """Say which evaluations the returns of the suite are of."""
    if suite.last == 1:
        return "after the last step"
    return f"in the mean over the last {suite.last} evaluations"


def write(suite: Suite, records: Sequence[Record], folder: Path) -> None:
    """Write the suite's page to `folder`, with a picture of each environment's learning curves.

    Runs of the suite that have no record are shown as not run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {(x["algorithm"], x["environment"]): x for x in records}
    old = outdated_records(suite, records)
    planned = {(run.algorithm, run.environment): run for run in runs(suite)}
    missing = {key: cell_without_record(run) for key, run in planned.items() if key not in known}
    lines = [
        "<!-- Written by `jaxrl suite` from the records; do not edit. -->",
        "",
        f"# {suite.title}",
        "",
        suite.text.strip(),
        "",
        f"{policies(suite)} of {suite.episodes} episodes {when(suite)}: the interquartile mean "
        "over seeds and its 95 % interval (stratified bootstrap; with so few seeds it is too "
        "narrow). All environments are pooled with scores from 0 to 1 between "
        + ", ".join(f"{x.low:g} and {x.high:g} ({name})" for name, x in suite.environments.items())
        + ".",
        "",
        *explanation_of_failures(suite),
        "| algorithm | steps | seeds | " + " | ".join(suite.environments) + " | all |",
        "| --- |" + " ---: |" * (len(suite.environments) + 3),
    ]
    best = {
        environment: max(
            finals(x, suite.last).max() for (_, where), x in known.items() if where == environment
        )
        for environment in {where for _, where in known}
    }
    for algorithm in suite.algorithms:
        mine = {environment: x for (name, environment), x in known.items() if name == algorithm}
        outdated = {environment for name, environment in old if name == algorithm}
        empty = {where: cell for (name, where), cell in missing.items() if name == algorithm}
        lines.append(row(suite, algorithm, mine, outdated, best, empty))
        lines += [
            published_row(suite, one)
            for one in suite.published
            if one.algorithm == algorithm and not one.elsewhere
        ]
    lines += [published_row(suite, one) for one in suite.published if one.elsewhere]
    lines += meaning_of_empty_cells(suite, missing.values())
    lines += data_returns(suite, known.values())
    lines += best_evaluations(suite, known)
    lines += budgets(suite)
    if old:
        lines += ["", f"{OLD} Trained under settings that the suite no longer has:", ""]
        lines += differences(old)
    if suite.published:
        lines += ["", "In italics, what others published:", "", *sources(suite)]
    for environment in suite.environments:
        curves = {
            f"{name} {OLD}" if (name, environment) in old else name: (x["steps"], curve(x))
            for (name, place), x in known.items()
            if place == environment
        }
        if curves:
            picture = f"{suite.name}-{environment}.svg"
            where = folder / picture
            shown = "greedy return" if suite.environments[environment].greedy else "return"
            learning_curves(curves, where, title=environment, ylabel=shown, robust=True)
            lines += [
                "",
                f"## {environment}",
                "",
                f"![Learning curves in {environment}]({picture})",
            ]
            lines += behavior(
                suite, environment, [x for x in known.values() if x["environment"] == environment]
            )
    lines += solved_settings(suite, known)
    if known:
        lines += ["", "## Runs", "", *provenance(known.values())]
    with files.explain_errors(folder):
        files.write_text(folder / f"{suite.name}.md", "\n".join(lines) + "\n")


def strip_name(suite: Suite, algorithm: str, environment: str) -> str:
    """Return the file name of the strip of an algorithm's policy at work."""
    return f"{suite.name}-{environment}-{run_folder.slug(algorithm)}.png"


def behavior(suite: Suite, environment: str, found: Sequence[Record]) -> list[str]:
    """Return a table of the environment's metrics in the last evaluation, and the strips."""
    place, lines = suite.environments[environment], []
    if place.metrics:
        lines += ["", "| algorithm | " + " | ".join(place.metrics) + " |"]
        lines += ["| --- |" + " ---: |" * len(place.metrics)]
        for one in found:
            values = [np.asarray(one["metrics"][name], np.float64) for name in place.metrics]
            cells = " | ".join(estimate(x, "{:.2f}") for x in values)
            lines.append(f"| {one['algorithm']} | {cells} |")
    for one in found if place.strip else []:
        picture = strip_name(suite, one["algorithm"], environment)
        lines += ["", f"{one['algorithm']}, every {place.strip} steps:", ""]
        lines += [f"![{one['algorithm']} in {environment}]({picture})"]
    return lines


def explanation_of_failures(suite: Suite) -> list[str]:
    """Return the paragraph that says which seeds count as not having learned."""
    returns = {name: x.random for name, x in suite.environments.items() if x.random is not None}
    if not returns:
        return []
    return [
        "A cell also counts the seeds that did not learn, if there are any: their return in the "
        f"last evaluation is at most {100 * LEARNED:g} % of the way from random play to the best "
        "seed in that environment, of any algorithm and budget here. Random play returns "
        + ", ".join(f"{value:g} ({name})" for name, value in returns.items())
        + ".",
        "",
    ]


NOT_RUN, TOO_LONG = "not run", "too long"


def cell_without_record(run: Run) -> str:
    """Return what the table shows for a run of the suite that has no record."""
    return TOO_LONG if run.too_long else NOT_RUN


def meaning_of_empty_cells(suite: Suite, cells: Collection[str]) -> list[str]:
    """Return the sentences that explain the cells of runs without records, if there are any."""
    found = []
    if NOT_RUN in cells:
        found.append(f"*{NOT_RUN}*: `jaxrl suite {suite.name} --missing` trains it.")
    if TOO_LONG in cells:
        found.append(
            f"*{TOO_LONG}*: estimated at more than {suite.longest:g} minutes on two cores, so it "
            "is trained only with `--long`."
        )
    return ["", " ".join(found)] if found else []


def data_returns(suite: Suite, found: Iterable[Record]) -> list[str]:
    """Return the paragraph with the mean returns of the datasets, if any record has one."""
    means: dict[str, dict[str, None]] = {name: {} for name in suite.environments}
    for one in found:
        if "data_return" in one:
            means[one["environment"]][number(one["data_return"])] = None
    known = [f"{' and '.join(values)} ({name})" for name, values in means.items() if values]
    if not known:
        return []
    text = f"Mean return of the data: {', '.join(known)}."
    if any(len(values) > 1 for values in means.values()):
        text += " Runs with other data in one environment cannot be compared there."
    return ["", text]


def best_evaluations(suite: Suite, known: Mapping[tuple[str, str], Record]) -> list[str]:
    """Return a table of the best evaluation of each seed during training, if the suite wants it."""
    if not suite.best or not known:
        return []
    lines = [
        "",
        "Best evaluation of each seed during training, instead of the last one. Without an "
        "environment nobody can choose it; `jaxrl.evaluation.selection.bandit_selection` says what "
        "choosing costs.",
    ]
    lines += ["", "| algorithm | " + " | ".join(suite.environments) + " |"]
    lines += ["| --- |" + " ---: |" * len(suite.environments)]
    for name in suite.algorithms:
        cells = [
            estimate(np.nanmax(curve(known[name, place]), -1), "") if (name, place) in known else ""
            for place in suite.environments
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def budgets(suite: Suite) -> list[str]:
    """Return a table of steps and seeds, if some algorithm's differ between environments."""
    places = {name: x.environments or suite.environments for name, x in suite.algorithms.items()}
    if all(
        len({entry.budget(place) for place in places[name]}) == 1
        for name, entry in suite.algorithms.items()
    ):
        return []
    lines = ["", "Steps of each seed (seeds):", ""]
    lines += ["| algorithm | " + " | ".join(suite.environments) + " |"]
    lines += ["| --- |" + " ---: |" * len(suite.environments)]
    for name, entry in suite.algorithms.items():
        cells = [
            "{:,} ({})".format(*entry.budget(place)) if place in places[name] else ""
            for place in suite.environments
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def solved_settings(suite: Suite, known: Mapping[tuple[str, str], Record]) -> list[str]:
    """Return a table of the scores of environments with a `score`, if the suite has any.

    A score is the share of the environments with this rule that a seed solves, as a mean over
    seeds. Where some of them have no record, it is that of the others, and says of how many.
    """
    rules = dict.fromkeys(x.score for x in suite.environments.values() if x.score)
    if not rules:
        return []
    lines = ["", "## Scores", ""]
    lines += [
        "Share of the settings that are solved by the rule of the score, mean over seeds; of the "
        "settings that were run, where not all were.",
        "",
    ]
    lines += ["| algorithm | " + " | ".join(rules) + " |", "| --- |" + " ---: |" * len(rules)]
    for algorithm in suite.algorithms:
        cells = []
        for rule in rules:
            places = [name for name, x in suite.environments.items() if x.score == rule]
            trained = suite.algorithms[algorithm].environments or suite.environments
            found = [known[algorithm, x]["solved"] for x in places if (algorithm, x) in known]
            if found:
                share = f"{np.mean([np.mean(x) for x in found]):.2f}"
                whole = len(found) == len(places)
                cells.append(share if whole else f"{share} ({len(found)} of {len(places)} run)")
            else:
                cells.append(NOT_RUN if any(x in trained for x in places) else "")
        lines.append(f"| {algorithm} | " + " | ".join(cells) + " |")
    return lines


def published_row(suite: Suite, one: Published) -> str:
    """Return the line of the table with what others published."""
    cells = (published_cell(one, environment) for environment in suite.environments)
    steps = one.steps if isinstance(one.steps, dict) else {"": one.steps}
    return (
        f"| *{_label(one)}* | {_range(steps.values())} | {one.seeds or ''} | "
        + " | ".join(cells)
        + " |  |"
    )


def published_cell(one: Published, environment: str) -> str:
    """Return a published return with its interval, deviation, or range over seeds."""
    value = one.returns.get(environment)
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return f"{number(float(np.mean(value)))} ({number(min(value))} to {number(max(value))})"
    margin, deviation = one.margins.get(environment), one.deviations.get(environment)
    if margin is not None:
        return f"{number(value)} [{number(value - margin)}, {number(value + margin)}]"
    return number(value) + ("" if deviation is None else f" ± {number(deviation)}")


def _range(values: Iterable[int]) -> str:
    low, high = min(values := list(values)), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def sources(suite: Suite) -> list[str]:
    """Return a list of where the published figures are found, each source once."""
    found: dict[tuple[str, str], list[Published]] = {}
    for one in suite.published:
        found.setdefault((one.source, one.commit), []).append(one)
    return [_source(results) for results in found.values()]


def _source(results: Sequence[Published]) -> str:
    """Return the line of one source: labels of its results, where they are found, and versions."""
    one = results[0]
    labels = ", ".join(dict.fromkeys(f"*{_label(x)}*" for x in results))
    text = f"- {labels}: " + " ".join(one.source.split())
    versions = dict.fromkeys(version for x in results for version in x.versions.values())
    if versions:
        text += f" Environments: {', '.join(versions)}."
    if one.commit:
        text += f" Commit `{one.commit[:12]}`, licence {one.licence}."
    if any(isinstance(value, list | tuple) for x in results for value in x.returns.values()):
        text += " In brackets, the lowest and highest seed."
    if any(x.deviations for x in results):
        text += " ± is the standard deviation that the source reports."
    return text


def _label(one: Published) -> str:
    return f"{one.algorithm} by {one.who}"


def differences(old: Mapping[tuple[str, str], Mapping[str, tuple[Any, Any]]]) -> list[str]:
    """Return a list of what `outdated_records` found, for each algorithm and setting."""
    where: dict[tuple[str, str], list[str]] = {}
    for (algorithm, environment), settings in old.items():
        for name, (then, now) in settings.items():
            text = f"`{name}` was {_show(then)}, is {_show(now)}"
            where.setdefault((algorithm, text), []).append(environment)
    return [f"- {name} in {', '.join(places)}: {text}" for (name, text), places in where.items()]


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def row(
    suite: Suite,
    algorithm: str,
    mine: dict[str, Record],
    old: Collection[str],
    best: Mapping[str, float],
    empty: Mapping[str, str],
) -> str:
    """Return an algorithm's line of the table: each environment, then all on their common scale.

    old: environments whose record has outdated settings; these are marked, and not pooled.
    best: highest last return of any seed in each environment.
    empty: what is shown for the environments of the algorithm without a record.
    """
    cells, scores = [], []
    for environment, place in suite.environments.items():
        if environment not in mine:
            cells.append(empty.get(environment, ""))
            continue
        values = finals(mine[environment], suite.last)
        cell = estimate(values, "")
        if place.random is not None:
            failures = count_failures(values, random=place.random, best=best[environment])
            cell += f" ({failures}/{len(values)} did not learn)" if failures else ""
        cells.append(cell + (f" {OLD}" if environment in old else ""))
        if environment not in old:
            scores.append((values - place.low) / (place.high - place.low))
    whole = len(scores) == len(suite.environments) and len({len(x) for x in scores}) == 1
    together = estimate(np.stack(scores, -1), "{:.2f}") if whole and len(scores) > 1 else ""
    entry = suite.algorithms[algorithm]
    budget = {x: entry.budget(x) for x in entry.environments or suite.environments}
    for environment, found in mine.items():  # the budget behind the figure, not the present one
        budget[environment] = found["config"]["steps"], found["config"]["seeds"]
    steps, seeds = (_range(x) for x in zip(*budget.values(), strict=True))
    return f"| {algorithm} | {steps} | {seeds} | " + " | ".join(cells) + f" | {together} |"


def estimate(scores: np.ndarray, form: str) -> str:
    """Return the interquartile mean of scores [seeds] or [seeds, environments] and its interval.

    form: how a number is written, as in `format`; empty for `number`.
    """
    found = interquartile_interval(scores)
    write = form.format if form else number
    interval = f" [{write(found.low)}, {write(found.high)}]" if np.isfinite(found.low) else ""
    return write(found[0]) + interval


def number(value: float) -> str:
    """Return a return with three digits, or as a whole number from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def provenance(found: Any) -> list[str]:
    """Return the number, hours, versions and commits of the runs behind the records."""
    found = list(found)
    hours = sum(x["seconds"]["training"] + x["seconds"]["compiling"] for x in found) / 3600
    versions = sorted({f"jax {x['versions']['jax']}" for x in found})
    commits = sorted({x["commit"] for x in found})
    return [
        f"{len(found)} runs, {hours:.1f} hours, {', '.join(versions)}, commits "
        f"{', '.join(commits)}. The settings, and every seed's curve, are in the `.json` file of "
        "the same name.",
    ]
