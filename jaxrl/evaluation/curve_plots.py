"""Pictures of learning curves: scores over environment steps.

Every shaded band is the interval of `statistics.score_interval`, unless `robust` is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxrl.core.errors import UserError
from jaxrl.evaluation.figures import (
    COLORS,
    FAINT,
    WIDE,
    Bounds,
    add_legend,
    make_figure,
    palette,
    save_figure,
)
from jaxrl.evaluation.statistics import column_intervals, confidence_text


def learning_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    path: Path | str | None,
    title: str | None = None,
    *,
    ylabel: str = "episode return",
    xlabel: str = "environment steps",
    robust: bool = False,
    colors: Mapping[str, Any] | None = None,
    narrow: bool = False,
):
    """Draw a curve for each label: the mean over seeds and its `score_interval`.

    With up to six labels a thin line shows each seed, too. The interval at a step uses the seeds
    that have a value there; a single seed has no interval. If one curve is more than 10 times as
    long as another, the step axis is logarithmic and leaves out step 0.

    Args:
        curves: label -> (steps [K], values [seeds, K]); NaN where a seed has no value, also
            infinite where a run diverged.
        path: file to write; its suffix selects the format (.png, .pdf, .svg). Missing folders are
            created. None writes no file.
        robust: draw the interquartile mean with its stratified bootstrap interval instead.
        colors: label -> color, for several pictures that should agree; by default `palette`.
        narrow: half the width, with the legend below.

    Returns:
        The matplotlib `Figure`, which is also written to `path`.

    Raises:
        UserError: if there is no curve, or if a curve's shapes do not match.
    """
    return panels_of_curves(
        {ylabel: {"": curves}},
        path,
        title,
        xlabel=xlabel,
        robust=robust,
        colors=colors,
        narrow=narrow,
    )


def panels_of_curves(
    panels: Mapping[str, Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]]],
    path: Path | str | None,
    title: str | None = None,
    *,
    xlabel: str = "environment steps",
    robust: bool = False,
    colors: Mapping[str, Any] | None = None,
    narrow: bool = False,
):
    """Draw the `learning_curves` of several measures in panels that share the step axis.

    Args:
        panels: measure -> how it was measured -> label -> (steps, values). A label has the same
            color in all panels, and a way of measuring the same line style: solid for the first
            way, dashed for the others. If there is only one label, colors tell the ways apart.
        path, title, xlabel, robust, colors, narrow: as in `learning_curves`.

    Returns:
        The matplotlib `Figure`, which is also written to `path`.

    Raises:
        UserError: if there is no curve, or if a curve's shapes do not match.
    """
    curves = [
        (name, way, str(label), _check_curve(str(label), *curve))
        for name, ways in panels.items()
        for way, labels in ways.items()
        for label, curve in labels.items()
    ]
    if not curves:
        raise UserError("There is no learning curve to draw.")
    labels = list(dict.fromkeys(label for _, _, label, _ in curves))
    ways = list(dict.fromkeys(way for _, way, _, _ in curves))
    has_value = {label for _, _, label, (_, values) in curves if np.isfinite(values).any()}
    figure, all_axes = make_figure(title, xlabel, *panels, narrow=narrow)
    bounds = {name: Bounds() for name in panels}
    by_way = len(labels) == 1 and any(ways)
    names = ways if by_way else labels
    colors, few = colors or palette(names), len(labels) <= len(COLORS)
    styles = {way: "--" if i else "-" for i, way in enumerate(ways)}
    axes_of = dict(zip(panels, all_axes, strict=True))
    ends = [steps.max() for *_, (steps, _) in curves]
    logarithmic = 0 < WIDE * min(ends) < max(ends)
    for name, way, label, (steps, values) in curves:
        if logarithmic:
            steps, values = steps[steps > 0], values[:, steps > 0]
            axes_of[name].set_xscale("log")
        line_name = way if by_way else label
        line = _draw_curve(
            axes_of[name],
            bounds[name],
            steps,
            values,
            color=colors[line_name],
            few=few,
            robust=robust,
        )
        note = "" if label in has_value else " (no value)"
        line.set(linestyle=styles[way], label=line_name + note)
    for name, axes in axes_of.items():
        bounds[name].apply(axes)
        _use_engineering_units(axes)
    for way in [] if by_way else filter(None, ways):
        all_axes[-1].plot([], [], color=FAINT, linestyle=styles[way], label=way)
    counts = [len(values) for *_, (_, values) in curves if len(values) > 1]
    average = "interquartile mean" if robust else "mean"
    confidence = "95 %" if robust else confidence_text(min(counts, default=1))
    heading = f"{average}, {confidence} interval" if counts else "one seed, no interval"
    add_legend(figure, all_axes, heading, narrow)
    return save_figure(figure, path)


def _draw_curve(
    axes, bounds: Bounds, steps: np.ndarray, values: np.ndarray, *, color, few: bool, robust: bool
):
    """Draw the mean and its interval, and each seed if the curves are `few`; return the mean's
    line."""
    mean, low, high = column_intervals(values, robust)
    if few and len(values) > 1:
        axes.plot(steps, values.T, color=color, alpha=0.3, linewidth=0.7, zorder=2)
        bounds.data(values)
    alone = "o" if np.isfinite(mean).sum() == 1 else None  # a single point makes no line
    width, shade = (2, 0.18) if few else (1.4, 0.07)
    (line,) = axes.plot(steps, mean, color=color, linewidth=width, marker=alone, zorder=3)
    axes.fill_between(steps, low, high, color=color, alpha=shade, linewidth=0, zorder=1)
    bounds.data(mean)
    bounds.interval(low, high)
    return line


def _use_engineering_units(axes) -> None:
    """Label steps as 200k and 1.5M."""
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _check_curve(label: str, steps: ArrayLike, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return steps [K] and values [seeds, K] as arrays, NaN for all that is not finite. Raise
    `UserError` if the shapes do not match."""
    steps, values = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    if steps.ndim != 1 or values.ndim != 2 or values.shape[1] != steps.size or not values.size:
        raise UserError(
            f"The curve '{label}' needs steps [K] and values [seeds, K], not shapes "
            f"{list(steps.shape)} and {list(values.shape)}."
        )
    return steps, np.where(np.isfinite(values), values, np.nan)
