"""Pictures of runs: learning curves, and a sweep's final scores.

Drawn on `Figure` objects of their own, without pyplot's global state, so that they can be made in
threads and beside a notebook's figures. matplotlib is imported late: training does not need it.
Every shaded band and bar is the 95 % interval of `statistics.mean_interval`, unless said otherwise.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxrl.core.errors import UserError
from jaxrl.evaluation.statistics import (
    Interval,
    interquartile_interval,
    mean_interval,
    performance_profile,
    stratified_bootstrap,
)

# Okabe & Ito (2008), "Color Universal Design": told apart by color-blind readers too.
_COLorS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_INK, _FAINT = "#222222", "#888888"
_WIDE = 10  # times from which on an axis is logarithmic


def learning_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    path: Path | str | None,
    title: str | None = None,
    ylabel: str = "episode return",
    xlabel: str = "environment steps",
    robust: bool = False,
    colors: Mapping[str, Any] | None = None,
    narrow: bool = False,
):
    """Draw one curve a label: the mean over seeds, its 95 % interval and, up to six labels, a thin
    line for each seed.

    The interval of a column is that of the seeds with a value there; a single one has none. Steps
    are logarithmic, and begin after 0, where one curve is more than 10 times as long as another.

    Args:
        curves: label -> (steps [K], values [seeds, K]); NaN (or infinite, from a run that diverged)
            where a seed has no value.
        path: where to write; its suffix says the format (.png, .pdf, .svg). Folders are made. None
            for nowhere.
        robust: draw the interquartile mean with its stratified bootstrap interval instead.
        colors: label -> color, where several pictures are to agree; else one of `palette`.
        narrow: of half the width, with the legend below.

    Returns:
        The matplotlib `Figure`, which is also written to `path`.

    Raises:
        UserError: if there is no curve, or if the shapes of one do not fit.
    """
    return panels_of_curves({ylabel: {"": curves}}, path, title, xlabel, robust, colors, narrow)


def panels_of_curves(
    panels: Mapping[str, Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]]],
    path: Path | str | None,
    title: str | None = None,
    xlabel: str = "environment steps",
    robust: bool = False,
    colors: Mapping[str, Any] | None = None,
    narrow: bool = False,
):
    """Draw `learning_curves` of several measures, one below the other along the same steps.

    Args:
        panels: name of the measure -> way it was measured -> label -> (steps, values). A label has
            one color in all panels (of a single label, a way), a way one kind of line: the first
            solid, others dashed.
        path, title, xlabel, robust, colors, narrow: as of `learning_curves`.

    Returns:
        The matplotlib `Figure`, which is also written to `path`.

    Raises:
        UserError: if there is no curve, or if the shapes of one do not fit.
    """
    curves = [
        (name, way, str(label), _curve(str(label), *curve))
        for name, ways in panels.items()
        for way, labels in ways.items()
        for label, curve in labels.items()
    ]
    if not curves:
        raise UserError("There is no learning curve to draw.")
    labels = list(dict.fromkeys(label for _, _, label, _ in curves))
    ways = list(dict.fromkeys(way for _, way, _, _ in curves))
    known = {label for _, _, label, (_, values) in curves if np.isfinite(values).any()}
    figure, all_axes = _figure(title, xlabel, *panels, narrow=narrow)
    bounds = {name: _Bounds() for name in panels}
    by_way = len(labels) == 1 and any(ways)  # then colors tell the ways apart, too
    named = ways if by_way else labels
    colors, few = colors or palette(named), len(labels) <= len(_COLorS)
    styles = {way: "--" if i else "-" for i, way in enumerate(ways)}
    axes_of = dict(zip(panels, all_axes, strict=True))
    ends = [steps.max() for *_, (steps, _) in curves]
    logarithmic = 0 < _WIDE * min(ends) < max(ends)
    for name, way, label, (steps, values) in curves:
        if logarithmic:
            steps, values = steps[steps > 0], values[:, steps > 0]
            axes_of[name].set_xscale("log")
        called = way if by_way else label
        line = _draw_curve(axes_of[name], bounds[name], steps, values, colors[called], few, robust)
        note = "" if label in known else " (no value)"
        line.set(linestyle=styles[way], label=called + note)
    for name, axes in axes_of.items():
        bounds[name].apply(axes)
        _engineering(axes)
    for way in [] if by_way else filter(None, ways):
        all_axes[-1].plot([], [], color=_FAINT, linestyle=styles[way], label=way)
    _legend(figure, all_axes, f"{'interquartile ' if robust else ''}mean, 95 % interval", narrow)
    return _write(figure, path)


def performance_profiles(
    scores: Mapping[str, ArrayLike],
    path: Path | str | None,
    title: str | None = None,
    xlabel: str = "score",
    colors: Mapping[str, Any] | None = None,
    narrow: bool = False,
):
    """Draw the share of runs above each score, for each label, with its 95 % interval (stratified
    bootstrap; none of a single run): `statistics.performance_profile`, exactly, as steps.

    Args:
        scores: label -> [runs] or [runs, tasks].
        path, colors, narrow: as for `learning_curves`.

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
    figure, (axes,) = _figure(title, xlabel, "share of runs above", narrow=narrow)
    profile = lambda x: performance_profile(x, levels)
    for label, x in arrays.items():
        axes.step(levels, profile(x), where="post", color=colors[label], linewidth=2, label=label)
        if len(x) > 1:
            _, low, high = stratified_bootstrap(profile, x, resamples=1000)
            shade = 0.15 if len(arrays) <= len(_COLorS) else 0.05
            axes.fill_between(
                levels, low, high, step="post", color=colors[label], alpha=shade, linewidth=0
            )
    axes.set_xlim(levels[0], levels[-1])
    axes.set_ylim(-0.03, 1.03)
    _legend(figure, [axes], "95 % interval", narrow)
    return _write(figure, path)


def _draw_curve(
    axes, bounds: _Bounds, steps: np.ndarray, values: np.ndarray, color, few: bool, robust: bool
):
    """The line of the mean; its interval is drawn, too, and of `few` curves that of each seed."""
    mean, low, high = column_intervals(values, robust)
    if few and len(values) > 1:
        axes.plot(steps, values.T, color=color, alpha=0.3, linewidth=0.7, zorder=2)
        bounds.data(values)
    alone = "o" if np.isfinite(mean).sum() == 1 else None  # one point makes no line
    width, shade = (2, 0.18) if few else (1.4, 0.07)
    (line,) = axes.plot(steps, mean, color=color, linewidth=width, marker=alone, zorder=3)
    axes.fill_between(steps, low, high, color=color, alpha=shade, linewidth=0, zorder=1)
    bounds.data(mean)
    bounds.interval(low, high)
    return line


def sweep_picture(
    settings: Mapping[str, Sequence[Any]],
    scores: ArrayLike,
    path: Path | str | None,
    title: str | None = None,
    ylabel: str = "final episode return",
    narrow: bool = False,
):
    """Draw the mean final score of each setting of a sweep, with its 95 % interval.

    Hyperparameters that do not vary are left out. One that varies, of numbers, becomes the axis
    (logarithmic if it spans more than a factor of 10); with a second one there is a line for each
    of its values, the one with more values being the axis. Anything else becomes horizontal bars.

    Args:
        settings: hyperparameter -> its value in each of the S settings.
        scores: [S, seeds]; NaN (or infinite) where a seed has no score.
        path, narrow: as for `learning_curves`.

    Returns:
        The matplotlib `Figure`, which is also written to `path`.

    Raises:
        UserError: if there is no setting, or if the shapes do not fit.
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
    varied = {n: list(v) for n, v in settings.items() if len(_distinct(v)) > 1}
    intervals = column_intervals(scores.T)
    axis = _axis(varied)
    figure, (axes,) = _figure(title, axis or ylabel, ylabel if axis else "", narrow=narrow)
    if axis:
        _draw_lines(axes, axis, varied, intervals)
        other = next((n for n in varied if n != axis), None)
        if other:
            _legend(figure, [axes], other, narrow)
    else:
        _draw_bars(figure, axes, varied, intervals)
    return _write(figure, path)


def column_intervals(values: np.ndarray, robust: bool = False) -> Interval:
    """`mean_interval` of each column over the seeds that have a value there.

    Args:
        values: [seeds, K], not finite where there is none.
        robust: the bootstrap's interval of the interquartile mean instead.

    Returns:
        Interval of float64 [K] each: NaN where no seed has a value, and `low` and `high` also where
        only one has.
    """
    columns = np.full((3, values.shape[1]), np.nan)
    for k, column in enumerate(values.T):
        present = column[np.isfinite(column)]
        if present.size:
            columns[:, k] = (
                interquartile_interval(present, resamples=1000)
                if robust
                else mean_interval(present)
            )
    columns[~np.isfinite(columns)] = np.nan
    return Interval(*columns)


# ---------------------------------------------------------------------------------- sweeps


def _axis(varied: dict[str, list]) -> str | None:
    """The hyperparameter to draw along, if one can be: the one of most values."""
    numeric = [n for n, values in varied.items() if all(map(_is_number, values))]
    combinations = set(zip(*(map(str, v) for v in varied.values()), strict=True))
    repeated = varied and len(combinations) < len(next(iter(varied.values())))
    if len(varied) > 2 or not numeric or repeated:
        return None
    return max(numeric, key=lambda n: len(_distinct(varied[n])))


def _draw_lines(axes, axis: str, varied: dict[str, list], intervals: Interval) -> None:
    x = np.array(varied[axis], np.float64)
    other = next((values for name, values in varied.items() if name != axis), [""] * len(x))
    groups, bounds = _distinct(other), _Bounds()
    _scale(axes, x[np.isfinite(intervals.estimate)])
    for i, (color, group) in enumerate(zip(_palette(len(groups)), groups, strict=True)):
        members = [j for j, value in enumerate(other) if value == group]
        order = sorted(members, key=lambda j: x[j])
        mean, low, high = (part[order] for part in intervals)
        at = _shifted(axes, x[order], i, len(groups))
        axes.plot(at, mean, "o-", color=color, markersize=5, label=_show(group), zorder=3)
        axes.vlines(at, low, high, color=color, linewidth=1.5, alpha=0.7, zorder=2)
        bounds.data(mean)
        bounds.interval(low, high)
    bounds.apply(axes)


def _scale(axes, x: np.ndarray) -> None:
    """A logarithmic axis for a wide range, with a linear stretch to 0 if that is among `x`."""
    positive = x[x > 0]
    if positive.size and x.min() >= 0 and positive.max() > _WIDE * positive.min():
        if positive.size == x.size:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=positive.min())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _shifted(axes, x: np.ndarray, i: int, n: int) -> np.ndarray:
    """`x` moved a little for the i-th of n lines on a logarithmic axis, so that their intervals do
    not cover each other."""
    if axes.get_xscale() != "log" or n == 1:
        return x
    return x * 10 ** (0.02 * (i - (n - 1) / 2))


def _draw_bars(figure, axes, varied: dict[str, list], intervals: Interval) -> None:
    names = list(varied)
    settings = list(zip(*varied.values(), strict=True)) or [()] * len(intervals.estimate)
    labels = [
        ", ".join(f"{n}={_show(v)}" for n, v in zip(names, setting, strict=True)) or "all"
        for setting in settings
    ]
    order = np.argsort(np.where(np.isnan(intervals.estimate), -np.inf, intervals.estimate))
    mean, low, high = (part[order] for part in intervals)
    places = np.arange(len(order))
    axes.barh(places, mean, color=_COLorS[0], alpha=0.75, height=0.7, zorder=2)
    axes.hlines(places, low, high, color=_INK, linewidth=1.5, zorder=3)
    axes.set_yticks(places, [labels[i] for i in order])
    axes.grid(False, axis="y")
    axes.set_ylim(-0.6, len(order) - 0.4)
    bounds = _Bounds()
    bounds.data(np.append(mean, 0.0))  # a bar starts at 0
    bounds.interval(low, high)
    bounds.apply(axes, vertical=False)
    figure.set_figheight(max(2.5, 1.2 + 0.28 * len(order)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.bool_))


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The values that occur: in rising order if they are numbers, else as they come."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return sorted(found) if all(map(_is_number, found)) else found


def _show(value: Any) -> str:
    return f"{value:.4g}" if _is_number(value) else str(value)


# ---------------------------------------------------------------------------------- figures


class _Bounds:
    """Limits that show all data, and of the intervals what is no further away than the data are
    wide: of two seeds the interval is 12 standard errors long and would flatten everything."""

    def __init__(self):
        self._data: list[np.ndarray] = []
        self._intervals: list[np.ndarray] = []

    def data(self, *parts: np.ndarray) -> None:
        self._data += [part[np.isfinite(part)] for part in parts]

    def interval(self, *parts: np.ndarray) -> None:
        self._intervals += [part[np.isfinite(part)] for part in parts]

    def apply(self, axes, vertical: bool = True) -> None:
        data, intervals = np.concatenate(self._data), np.concatenate(self._intervals)
        if not data.size:
            return
        low, high = data.min(), data.max()
        width = (high - low) or abs(high) or 1.0
        low = max(low - width, min(low, intervals.min(initial=low)))
        high = min(high + width, max(high, intervals.max(initial=high)))
        margin = 0.05 * ((high - low) or width)
        set_limits = axes.set_ylim if vertical else axes.set_xlim
        set_limits(low - margin, high + margin)


def _figure(title: str | None, xlabel: str, *ylabels: str, narrow: bool = False):
    """A figure with axes below each other, one for each of `ylabels`, along the same x."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    padding = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    panels = len(ylabels)
    size = (4.6, 3.5) if narrow else (7.5, 4.4 if panels == 1 else 2.6 * panels)
    figure = Figure(figsize=size, dpi=150, layout=padding)
    all_axes = figure.subplots(panels, sharex=True, squeeze=False)[:, 0]
    for axes, ylabel in zip(all_axes, ylabels, strict=True):
        axes.set_ylabel(ylabel, color=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
    all_axes[-1].set_xlabel(xlabel, color=_INK)
    if title:
        all_axes[0].set_title(title, loc="left", fontweight="bold", color=_INK)
    return figure, all_axes


def palette(labels: Iterable[str]) -> dict[str, Any]:
    """A color for each label."""
    labels = list(labels)
    return dict(zip(labels, _palette(len(labels)), strict=True))


def _palette(n: int) -> list[Any]:
    """n colors: distinct ones for a few, a sequence from dark to light for more."""
    if n <= len(_COLorS):
        return list(_COLorS[:n])
    import matplotlib

    return list(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.8, n)))


def _legend(figure, all_axes, title: str, below: bool = False) -> None:
    """Beside the axes, or below them, where it covers nothing; a label that stands in several
    once."""
    lines: dict[str, Any] = {}
    for axes in all_axes:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            lines.setdefault(label, line)
    labels = list(lines)
    if below:
        labels = [textwrap.fill(label, 50) for label in labels]
        figure.set_figheight(3.3 + 0.2 * "\n".join([*labels, ""]).count("\n"))
    legend = figure.legend(
        list(lines.values()),
        labels,
        title=title,
        loc="outside lower left" if below else "outside right upper",
        frameon=False,
        fontsize=9 if len(labels) <= 20 else 7,
        title_fontsize=8,
        alignment="left",
        ncols=1 if below else math.ceil(len(labels) / 30),
    )
    legend.get_title().set_color(_FAINT)


def _engineering(axes) -> None:
    """Steps as 200k and 1.5M."""
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _curve(label: str, steps: ArrayLike, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    steps, values = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    if steps.ndim != 1 or values.ndim != 2 or values.shape[1] != steps.size or not values.size:
        raise UserError(
            f"The curve '{label}' needs steps [K] and values [seeds, K], not shapes "
            f"{list(steps.shape)} and {list(values.shape)}."
        )
    return steps, np.where(np.isfinite(values), values, np.nan)


def _write(figure, path: Path | str | None):
    import matplotlib

    if path is None:
        return figure
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same picture is the same file: an SVG has a date and names by chance otherwise.
    with matplotlib.rc_context({"svg.hashsalt": "jaxrl"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return figure
