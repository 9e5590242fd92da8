"""Pictures of final scores: performance profiles, and the settings of a sweep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxrl.core.errors import UserError
from jaxrl.evaluation.figures import (
    COLORS,
    INK,
    WIDE,
    Bounds,
    add_legend,
    make_colors,
    make_figure,
    palette,
    save_figure,
)
from jaxrl.evaluation.statistics import (
    Interval,
    column_intervals,
    performance_profile,
    stratified_bootstrap,
)

# ------------------------------------------------------------------------------- profiles


def performance_profiles(
    scores: Mapping[str, ArrayLike],
    path: Path | str | None,
    title: str | None = None,
    *,
    xlabel: str = "score",
    colors: Mapping[str, Any] | None = None,
    narrow: bool = False,
):
    """Draw the share of runs above each score, for each label, with its 95 % interval.

    The steps are exactly those of `statistics.performance_profile`. The interval is a stratified
    bootstrap's; a single run has none.

    Args:
        scores: label -> [runs] or [runs, tasks].
        path, colors, narrow: as in `learning_curves`.

    Returns:
        The matplotlib `Figure`, which is also written to `path`.

    Raises:
        UserError: if there are no scores, or some are not finite.
    """
    if not scores:
        raise UserError("There are no scores to draw a profile of.")
    arrays = {label: np.asarray(x, np.float64) for label, x in scores.items()}
    colors = colors or palette(arrays)
    levels = np.unique(np.concatenate([x.ravel() for x in arrays.values()]))
    margin = 0.05 * (levels[-1] - levels[0]) or 1.0
    levels = np.concatenate([[levels[0] - margin], levels, [levels[-1] + margin]])
    figure, (axes,) = make_figure(title, xlabel, "share of runs above", narrow=narrow)
    profile = lambda x: performance_profile(x, levels)
    for label, x in arrays.items():
        axes.step(levels, profile(x), where="post", color=colors[label], linewidth=2, label=label)
        if len(x) > 1:
            _, low, high = stratified_bootstrap(profile, x, resamples=1000)
            shade = 0.15 if len(arrays) <= len(COLORS) else 0.05
            axes.fill_between(
                levels, low, high, step="post", color=colors[label], alpha=shade, linewidth=0
            )
    axes.set_xlim(levels[0], levels[-1])
    axes.set_ylim(-0.03, 1.03)
    add_legend(figure, [axes], "95 % interval", narrow)
    return save_figure(figure, path)


# ------------------------------------------------------------------------------- sweeps


def sweep_picture(
    settings: Mapping[str, Sequence[Any]],
    scores: ArrayLike,
    path: Path | str | None,
    *,
    title: str | None = None,
    ylabel: str = "final episode return",
    narrow: bool = False,
    log_scaled: Collection[str] = (),
):
    """Draw the mean final score of each setting of a sweep, with its `score_interval`.

    Hyperparameters that do not vary are left out. A single numeric one that varies becomes the
    axis, which is logarithmic if it is one of `log_scaled` or spans more than a factor of 10. With
    a second one there is a line for each of its values, and the numeric one with more values
    becomes the axis. Anything else becomes horizontal bars.

    Args:
        settings: hyperparameter -> its value in each of the S settings.
        scores: [S, seeds]; NaN or infinite where a seed has no score.
        path, narrow: as in `learning_curves`.
        log_scaled: hyperparameters whose values differ by factors.

    Returns:
        The matplotlib `Figure`, which is also written to `path`.

    Raises:
        UserError: if there is no setting, or if the shapes do not match.
    """
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise UserError(f"A sweep's scores are [settings, seeds], not {list(scores.shape)}.")
    for name, values in settings.items():
        if len(values) != len(scores):
            raise UserError(
                f"A sweep of {len(scores)} settings needs as many values of each hyperparameter; "
                f"'{name}' has {len(values)}."
            )
    varied = {n: list(v) for n, v in settings.items() if len(_distinct_values(v)) > 1}
    intervals = column_intervals(scores.T)
    axis = _choose_axis(varied)
    figure, (axes,) = make_figure(title, axis or ylabel, ylabel if axis else "", narrow=narrow)
    if axis:
        _draw_lines(axes, axis, varied, intervals, axis in log_scaled)
        other = next((n for n in varied if n != axis), None)
        if other:
            add_legend(figure, [axes], other, narrow)
    else:
        _draw_bars(figure, axes, varied, intervals)
    return save_figure(figure, path)


def _choose_axis(varied: dict[str, list]) -> str | None:
    """Return the numeric hyperparameter with most values, or None if bars must be drawn."""
    numeric = [n for n, values in varied.items() if all(map(_is_number, values))]
    combinations = set(zip(*(map(str, v) for v in varied.values()), strict=True))
    repeated = varied and len(combinations) < len(next(iter(varied.values())))
    if len(varied) > 2 or not numeric or repeated:
        return None
    return max(numeric, key=lambda n: len(_distinct_values(varied[n])))


def _draw_lines(axes, axis: str, varied: dict[str, list], intervals: Interval, log: bool) -> None:
    """Draw the scores along `axis`, with a line for each value of the other hyperparameter."""
    x = np.array(varied[axis], np.float64)
    other = next((values for name, values in varied.items() if name != axis), [""] * len(x))
    groups, bounds = _distinct_values(other), Bounds()
    _set_scale(axes, x[np.isfinite(intervals.estimate)], log)
    for i, (color, group) in enumerate(zip(make_colors(len(groups)), groups, strict=True)):
        members = [j for j, value in enumerate(other) if value == group]
        order = sorted(members, key=lambda j: x[j])
        mean, low, high = (part[order] for part in intervals)
        at = _shift(axes, x[order], i, len(groups))
        axes.plot(at, mean, "o-", color=color, markersize=5, label=format_value(group), zorder=3)
        axes.vlines(at, low, high, color=color, linewidth=1.5, alpha=0.7, zorder=2)
        bounds.data(mean)
        bounds.interval(low, high)
    bounds.apply(axes)


def _set_scale(axes, x: np.ndarray, log: bool) -> None:
    """Make the x axis logarithmic if `log` or if `x` spans a wide range, linear near 0 if `x`
    contains 0."""
    positive = x[x > 0]
    wide = positive.size and (log or positive.max() > WIDE * positive.min())
    if wide and x.min() >= 0:
        if positive.size == x.size:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=positive.min())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _shift(axes, x: np.ndarray, i: int, n: int) -> np.ndarray:
    """Shift `x` slightly for the i-th of n lines on a logarithmic axis, so that their intervals do
    not overlap."""
    if axes.get_xscale() != "log" or n == 1:
        return x
    return x * 10 ** (0.02 * (i - (n - 1) / 2))


def _draw_bars(figure, axes, varied: dict[str, list], intervals: Interval) -> None:
    """Draw a horizontal bar for each setting, in the order of their scores."""
    names = list(varied)
    settings = list(zip(*varied.values(), strict=True)) or [()] * len(intervals.estimate)
    labels = [
        ", ".join(f"{n}={format_value(v)}" for n, v in zip(names, setting, strict=True)) or "all"
        for setting in settings
    ]
    order = np.argsort(np.where(np.isnan(intervals.estimate), -np.inf, intervals.estimate))
    mean, low, high = (part[order] for part in intervals)
    places = np.arange(len(order))
    axes.barh(places, mean, color=COLORS[0], alpha=0.75, height=0.7, zorder=2)
    axes.hlines(places, low, high, color=INK, linewidth=1.5, zorder=3)
    axes.set_yticks(places, [labels[i] for i in order])
    axes.grid(False, axis="y")
    axes.set_ylim(-0.6, len(order) - 0.4)
    bounds = Bounds()
    bounds.data(np.append(mean, 0.0))  # a bar starts at 0
    bounds.interval(low, high)
    bounds.apply(axes, vertical=False)
    figure.set_figheight(max(2.5, 1.2 + 0.28 * len(order)))


def format_value(value: Any) -> str:
    """Write a hyperparameter's value in at most four digits, as the labels show it."""
    return f"{value:.4g}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.bool_))


def _distinct_values(values: Iterable[Any]) -> list[Any]:
    """Return the values without repetition: in rising order if numeric, else in order of first
    appearance."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return sorted(found) if all(map(_is_number, found)) else found
