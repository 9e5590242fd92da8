"""The page of some runs: their scores, comparisons, settings and origin.

Estimates and their uncertainty are those of Agarwal et al. (2021), "Deep Reinforcement Learning at
the Edge of the Statistical Precipice", NeurIPS (arXiv:2108.13264): interquartile means, performance
profiles and probabilities of improvement, with stratified bootstrap intervals.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.evaluation import curve_plots, score_plots
from jaxrl.evaluation.figures import palette
from jaxrl.evaluation.statistics import (
    Interval,
    confidence_text,
    final_scores,
    interquartile_interval,
    interquartile_mean,
    is_rate,
    metric_interval,
    probability_of_improvement,
    stratified_bootstrap,
)
from jaxrl.reporting.html import (
    Html,
    definition_list,
    element,
    image,
    join,
    page,
    svg_figure,
    table,
)
from jaxrl.reporting.runs import (
    ASIDE,
    Group,
    Run,
    differing_settings,
    environment_label,
    format_value,
    group_runs,
)
from jaxrl.suites import suite

ENOUGH = 10  # runs times tasks that the bootstrap needs
MOST_PAIRED = 6  # largest number of groups of which all pairs are compared
FEW_SETTINGS = 12  # largest table of settings that is not folded

NOTHING = "-"

Scores = dict[str, np.ndarray]  # label -> [runs] or [runs, environments]
Bounds = Mapping[str, Sequence[float]]  # environment -> (low, high)


def render_page(runs: Sequence[Run], score: str = "return", bounds: Bounds | None = None) -> str:
    """Return the page, as HTML that needs no other file.

    Args:
        score: name of the metric in the runs' `scores`.
        bounds: environment -> (low, high): scores are scaled from 0 at `low` to 1 at `high` and
            pooled over environments. Those of the built-in suites are known, for the return.

    Raises:
        UserError: for bounds that are not two rising numbers, or of an environment in which no run
            was evaluated.
    """
    groups = group_runs(runs)
    by_env: dict[str, list[Group]] = {}
    for group in groups:
        by_env.setdefault(group.env, []).append(group)
    known = (_known_bounds() if score == "return" else {}) | _check_bounds(bounds or {}, by_env)
    colors = palette(dict.fromkeys(group.label for group in groups))
    title = f"{_enumerate(run.config['algorithm'] for run in runs)} in {_enumerate(by_env)}"
    size = f"{_count(len(runs), 'run')}, {_count(sum(len(run.members) for run in runs), 'member')}"
    return page(
        title,
        element("h1", title),
        element("p", f"{size}.", class_="faint"),
        _notes(runs, groups),
        _all_environments(by_env, known, colors),
        *(_environment(env, some, score, colors) for env, some in by_env.items()),
        _settings(groups),
        _runs(runs),
        _reading(score),
    )


# ------------------------------------------------------------------------------- comparisons


def pool(by_env: Mapping[str, Sequence[Group]], bounds: Bounds) -> tuple[list[str], Scores]:
    """Return the environments with bounds, and each label's scores [runs, environments] in them.

    Scores are on a common scale. Only labels with the same number of runs in all of the
    environments are included.
    """
    envs = [env for env in by_env if env in bounds]
    found: dict[str, list[np.ndarray]] = {}
    for env in envs:
        low, high = bounds[env]
        for group in by_env[env]:
            found.setdefault(group.label, []).append((group.scores - low) / (high - low))
    whole = lambda parts: len(parts) == len(envs) and len({len(x) for x in parts}) == 1
    return envs, {
        label: np.stack(parts, -1)
        for label, parts in found.items()
        if whole(parts) and len(parts[0])
    }


def pairs(scores: Scores) -> list[tuple[str, str, Interval]]:
    """Return (X, Y, the probability that a run of X beats one of Y) for pairs of labels.

    These are all pairs, or the best label with each other one if there are many. Labels come in
    the order of their interquartile means, best first.
    """
    order = [label for label, _ in _order(scores)]
    chosen = (
        itertools.combinations(order, 2)
        if len(order) <= MOST_PAIRED
        else ((order[0], other) for other in order[1:])
    )
    return [(x, y, _improvement(scores[x], scores[y])) for x, y in chosen]


def _order(scores: Scores) -> list[tuple[str, np.ndarray]]:
    """Return the labels and scores, ordered by interquartile mean, best first."""
    return sorted(scores.items(), key=lambda item: -interquartile_mean(item[1]))


def _improvement(x: np.ndarray, y: np.ndarray) -> Interval:
    if min(len(x), len(y)) > 1:
        return stratified_bootstrap(probability_of_improvement, x, y)
    return Interval(probability_of_improvement(x, y), -np.inf, np.inf)


def estimate(found: Interval, form: str = "{:.4g}") -> str:
    """Format an estimate, such as `0.5 [0.4, 0.6]`, without an interval if that is unknown."""
    whole = form if not np.isfinite(found.low) else f"{form} [{form}, {form}]"
    return whole.format(*found)


def _comparison(scores: Scores, colors: Mapping[str, Any], what: str, where: str) -> list[Html]:
    """Return profiles and probabilities of improvement, if there are several labels to compare."""
    if len(scores) < 2:
        return []
    figure = score_plots.performance_profiles(scores, None, xlabel=what, colors=colors, narrow=True)
    rows = [(f"{x} over {y}", estimate(p, "{:.2f}")) for x, y, p in pairs(scores)]
    return [
        svg_figure(figure, f"Performance profiles, {where}", "Performance profiles"),
        element(
            "div",
            element("h3", "Probability of improvement"),
            table(("a run of X over one of Y", "P(X > Y)"), rows),
        ),
    ]


# ------------------------------------------------------------------------------------ sections


def _notes(runs: Sequence[Run], groups: Sequence[Group]) -> Html:
    """Return the warnings that a reader needs before believing a number."""
    notes = [
        f"{run.folder} is {run.state}. Its scores are from its last evaluation."
        for run in runs
        if not run.is_finished
    ]
    notes += [f"{run.folder} has no evaluations." for run in runs if not run.steps.size]
    notes += [
        f"{group.num_diverged} of {_count(len(group.members), 'seed')} of {group.label} in "
        f"{group.env} diverged and were frozen."
        for group in groups
        if group.num_diverged
    ]
    if any(len(group.scores) < ENOUGH for group in groups):
        notes.append(
            f"With fewer than {ENOUGH} seeds the bootstrap underestimates the spread: intervals of "
            "interquartile means, profiles and probabilities are too narrow. A single seed has no "
            "interval."
        )
    return element("ul", *(element("li", x, class_="warn") for x in notes)) if notes else Html()


def _all_environments(
    by_env: Mapping[str, Sequence[Group]], bounds: Bounds, colors: Mapping[str, Any]
) -> Html:
    if len(by_env) < 2:
        return Html()
    envs, scores = pool(by_env, bounds)
    head = element("h2", "All environments together")
    if len(envs) < 2 or not scores:
        missing = [env for env in by_env if env not in bounds]
        why = (
            f"bounds of the score are known for {', '.join(envs) or 'none'}; give those of "
            f"{', '.join(missing)} with --bounds ENV=LOW,HIGH"
            if missing
            else "no algorithm has the same number of seeds in each environment"
        )
        return join([head, element("p", f"Scores are not pooled: {why}.", class_="faint")])
    scale = ", ".join("{} ({:g} to {:g})".format(env, *bounds[env]) for env in envs)
    rows = [
        (label, estimate(interquartile_interval(x), "{:.3f}"), len(x))
        for label, x in _order(scores)
    ]
    return join(
        [
            head,
            element("p", f"Scores are from 0 to 1 within the bounds of {scale}.", class_="faint"),
            table(("", "IQM [95 %]", "seeds"), rows),
            element(
                "div", *_comparison(scores, colors, "score", "all environments"), class_="side"
            ),
        ]
    )


def _environment(env: str, groups: Sequence[Group], score: str, colors: Mapping[str, Any]) -> Html:
    scored = [group for group in groups if len(group.scores)]
    head = element("h2", env)
    if not scored:
        return join([head, element("p", "There are no evaluations.", class_="faint")])
    rows = [
        (
            group.label + ("" if all(run.is_finished for run in group.runs) else " (unfinished)"),
            estimate(interquartile_interval(group.scores)),
            estimate(metric_interval(score, group.scores)),
            len(group.members),
            group.num_diverged,
            f"{max(run.done for run in group.runs):,}",
        )
        for group in sorted(scored, key=lambda group: -interquartile_mean(group.scores))
    ]
    curves = curve_plots.learning_curves(
        {group.label: group.curves for group in scored},
        None,
        ylabel=score,
        colors=colors,
        narrow=True,
    )
    scores = {group.label: group.scores for group in scored}
    counts = [len(group.scores) for group in scored if len(group.scores) > 1]
    confidence = confidence_text(min(counts), score) if counts else "95 %"
    columns = ("", "IQM [95 %]", f"mean [{confidence}]", "seeds", "diverged", "steps")
    return join(
        [
            head,
            table(columns, rows),
            element(
                "div",
                svg_figure(curves, f"Learning curves in {env}", f"Evaluations: {score}"),
                *_comparison(scores, colors, f"final {score}", env),
                *_sweeps(scored, score),
                class_="side",
            ),
        ]
    )


def _sweeps(groups: Sequence[Group], score: str) -> list[Html]:
    """Return a figure of each sweep's scores over the settings that it varied."""
    drawings = []
    for run in {run.folder: run for group in groups for run in group.runs}.values():
        settings = list(run.members.by_setting().values())
        if len(settings) > 1 and len({len(members) for members in settings}) == 1:
            final = final_scores(run.scores)
            labels = [run.members.labels[members[0]] for members in settings]
            figure = score_plots.sweep_picture(
                {name: [x[name] for x in labels] for name in labels[0] if name != "seed"},
                [final[members] for members in settings],
                None,
                ylabel=f"final {score}",
                narrow=True,
            )
            drawings.append(
                svg_figure(figure, f"Scores of {run.folder}", f"Sweep: {run.folder.name}")
            )
    return drawings


def _settings(groups: Sequence[Group]) -> Html:
    """Return a table of the settings that differ.

    It has a column for each group, or a row if there are more groups than settings.
    """
    names = [name for name in differing_settings(groups) if name not in ASIDE]
    if not names:
        return Html()
    value = lambda group, name: (
        format_value(group.settings[name]) if name in group.settings else NOTHING
    )
    labels = [f"{group.label} in {group.env}" for group in groups]
    if len(groups) <= len(names):
        rows = [(name, *(value(group, name) for group in groups)) for name in names]
        inside = table(("", *labels), rows)
    else:
        rows = [
            (label, *(value(group, name) for name in names))
            for label, group in zip(labels, groups, strict=True)
        ]
        inside = table(("", *names), rows)
    if len(names) > FEW_SETTINGS:
        inside = element("details", element("summary", f"{len(names)} settings"), inside)
    return join([element("h2", "Settings that differ"), inside])


def _runs(runs: Sequence[Run]) -> Html:
    head = ("", "steps/s", "training", "compiling", "members", "diverged", "device", "state")
    rows = []
    for run in runs:
        seconds = run.summary.get("seconds") or {}
        took = (_seconds(seconds.get(name)) for name in ("training", "compiling"))
        number = (len(run.members), len(run.diverged_members))
        speed = _number(run.summary.get("steps_per_second"), "{:,.0f}")
        rows.append(
            (run.folder, speed, *took, *number, run.summary.get("device", NOTHING), run.state)
        )
    return join(
        [
            element("h2", "Runs"),
            element(
                "p",
                "Steps per second are those of all members together, evaluations included.",
                class_="faint",
            ),
            table(head, rows),
            element("div", *map(_run, runs), class_="side"),
        ]
    )


def _run(run: Run) -> Html:
    versions = run.summary.get("versions") or {}
    facts = {
        "algorithm": run.config["algorithm"],
        "environment": run.config["env"],
        "steps": f"{run.done:,} of {run.config['steps']:,}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()) or NOTHING,
    }
    commands = element("pre", "\n".join(run.commands)) if run.commands else ""
    shown = image(run.picture, f"An episode of {run.folder}") if run.picture else ""
    return element(
        "article", element("h3", run.folder), definition_list(facts.items()), commands, shown
    )


def _reading(score: str) -> Html:
    means = (
        "Means have Wilson's interval where every seed has 0 or 1, and otherwise Student's, cut at "
        "0 and 1; "
        if is_rate(score)
        else "Means have Student's interval, cut at the lowest and the highest seed (2, 3, 4 and 5 "
        "seeds span the truth only 50, 75, 88 and 94 % of the time); "
    )
    text = (
        f"Scores are each seed's {score} in its last evaluation. {means}"
        "interquartile means (IQM), the means of the middle half, have the interval of the "
        "stratified bootstrap (2,000 resamples). A performance profile is the share of runs with a "
        "score above each value. The probability of improvement is the share of pairs of runs in "
        "which X wins; a tie counts one half. Intervals are over seeds, of 95 % unless it says "
        "less. After Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the "
        "Statistical Precipice, arXiv:2108.13264."
    )
    return join([element("h2", "How to read this"), element("p", text, class_="faint")])


# ---------------------------------------------------------------------------------------- small


def _known_bounds() -> dict[str, tuple[float, float]]:
    """Return the bounds of the built-in suites' environments."""
    return {
        environment_label(environment.env, environment.env_params, environment.wrappers): (
            environment.low,
            environment.high,
        )
        for path in sorted(suite.SUITES.glob("*.yaml"))
        for environment in suite.read(path.stem).environments.values()
    }


def _check_bounds(bounds: Bounds, by_env: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    for env, values in bounds.items():
        if env not in by_env:
            raise UserError(
                f"--bounds names '{env}'; the runs were evaluated in {', '.join(by_env)}."
            )
        if len(values) != 2 or not np.isfinite(values).all() or values[0] >= values[1]:
            raise UserError(
                f"The bounds of {env} are {format_value(list(values))}; they must be two numbers, "
                "the smaller one first, such as 0,500."
            )
    return {env: (low, high) for env, (low, high) in bounds.items()}


def _enumerate(words: Iterable[str]) -> str:
    *some, last = dict.fromkeys(words)
    return f"{', '.join(some)} and {last}" if some else last


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _number(value: Any, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else NOTHING


def _seconds(value: Any) -> str:
    if isinstance(value, int | float) and value >= 120:
        return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
    return _number(value, "{:.1f} s")
