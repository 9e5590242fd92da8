"""Pictures of single seeds: where each of them ended, beside the mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from jaxrl.core.errors import UserError
from jaxrl.evaluation.figures import COLORS, FAINT, INK, make_figure, save_figure
from jaxrl.evaluation.statistics import score_interval

ROW = 0.32  # inches of a label


def seed_strips(
    panels: Mapping[str, Mapping[str, ArrayLike]],
    path: Path | str | None,
    *,
    references: Mapping[str, Mapping[str, float]] = {},
    logarithmic: bool = False,
    title: str | None = None,
):
    """Draw every seed of every label as a dot, with the mean and its interval (`score_interval`).

    Args:
        panels: what an axis shows -> label -> scores [seeds]. Values that are not finite are left
            out.
        path: where to write the figure; None writes nothing.
        references: what an axis shows -> name -> a value to mark, such as that of random play.
        logarithmic: whether the axes are; values of 0 then lie at their left end.

    Returns:
        The matplotlib `Figure`, which is also written to `path`.

    Raises:
        UserError: if there is nothing to draw.
    """
    if not panels or not all(panels.values()):
        raise UserError("Strips of seeds need at least one label with scores on each axis.")
    figure, all_axes = make_figure(title, "", *[""] * len(panels), share=False)
    rows = [len(labels) for labels in panels.values()]
    figure.set_size_inches(6.4, ROW * sum(rows) + 1.1 * len(rows) + 0.2)
    for axes, (shown, labels) in zip(all_axes, panels.items(), strict=True):
        drawn = {label: np.asarray(x, np.float64) for label, x in labels.items()}
        if logarithmic:
            finite = np.concatenate([x[np.isfinite(x) & (x > 0)] for x in drawn.values()])
            least = finite.min(initial=1.0) / 3
            axes.set_xscale("log")
            drawn = {label: np.maximum(x, least) for label, x in drawn.items()}
        for i, x in enumerate(drawn.values()):
            _draw_row(axes, i, x[np.isfinite(x)], COLORS[i % len(COLORS)], logarithmic)
        axes.set_yticks(range(len(drawn)), list(drawn), color=INK)
        axes.set_ylim(len(drawn) - 0.4, -0.6)
        axes.set_xlabel(shown, color=INK)
        for name, value in references.get(shown, {}).items():
            axes.axvline(value, color=FAINT, linestyle=":", zorder=0)
            axes.annotate(name, (value, -0.55), color=FAINT, fontsize=8, ha="center", va="bottom")
    return save_figure(figure, path)


def _draw_row(axes, row: int, x: np.ndarray, color: str, logarithmic: bool) -> None:
    """Draw one label's seeds, spread a little from their line so that equal ones can be told."""
    if not x.size:
        return
    spread = 0.22 * np.sin(np.arange(len(x)) * 2.4)  # the same picture for the same seeds
    axes.plot(x, row + spread, "o", color=color, alpha=0.45, markersize=4, markeredgewidth=0)
    if logarithmic or len(x) < 2:
        return
    mean, low, high = score_interval(x)
    axes.errorbar(
        mean, row, xerr=[[mean - low], [high - mean]], fmt="D", color=INK, markersize=4, capsize=3
    )
