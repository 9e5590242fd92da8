"""Building blocks of the pictures: figures, colors, axis limits, legends and files.

Figures are made without pyplot's global state, so that threads can draw and a notebook's own
figures stay as they are. matplotlib is imported late, since training does not need it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

# Okabe & Ito (2008), "Color Universal Design": color-blind readers can tell them apart, too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT = "#222222", "#888888"
WIDE = 10  # an axis is logarithmic if its values differ by more than this factor


def make_figure(
    title: str | None, xlabel: str, *ylabels: str, narrow: bool = False, share: bool = True
):
    """Return a figure and its axes, one for each of `ylabels`, stacked.

    share: whether they have one x axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    padding = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    panels = len(ylabels)
    size = (4.6, 3.5) if narrow else (7.5, 4.4 if panels == 1 else 2.6 * panels)
    figure = Figure(figsize=size, dpi=150, layout=padding)
    all_axes = figure.subplots(panels, sharex=share, squeeze=False)[:, 0]
    for axes, ylabel in zip(all_axes, ylabels, strict=True):
        axes.set_ylabel(ylabel, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
    all_axes[-1].set_xlabel(xlabel, color=INK)
    if title:
        all_axes[0].set_title(title, loc="left", fontweight="bold", color=INK)
    return figure, all_axes


def palette(labels: Iterable[str]) -> dict[str, Any]:
    """Map each label to a color."""
    labels = list(labels)
    return dict(zip(labels, make_colors(len(labels)), strict=True))


def make_colors(n: int) -> list[Any]:
    """Return n colors: distinct ones if there are few, else a sequence from dark to light."""
    if n <= len(COLORS):
        return list(COLORS[:n])
    import matplotlib

    return list(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.8, n)))


class Bounds:
    """Axis limits that show all data, but intervals only up to the data's width beyond the data.

    With two seeds the interval is 12 standard errors long and would flatten everything else.
    """

    def __init__(self):
        self._data: list[np.ndarray] = []
        self._intervals: list[np.ndarray] = []

    def data(self, *parts: np.ndarray) -> None:
        """Add points, all of which must be visible."""
        self._data += [part[np.isfinite(part)] for part in parts]

    def interval(self, *parts: np.ndarray) -> None:
        """Add ends of intervals, which may be cut off."""
        self._intervals += [part[np.isfinite(part)] for part in parts]

    def apply(self, axes, vertical: bool = True) -> None:
        """Set the limits of the y axis, or of the x axis if not `vertical`."""
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


def add_legend(figure, all_axes, title: str, below: bool = False) -> None:
    """Add one legend beside the axes or `below` them, where it covers nothing.

    A label that appears on several axes is listed once.
    """
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
    legend.get_title().set_color(FAINT)


def save_figure(figure, path: Path | str | None):
    """Write the figure to `path`, unless it is None, and return the figure.

    Missing folders are created. The same picture always gives the same file.
    """
    import matplotlib

    if path is None:
        return figure
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # By default an SVG contains the date and random names.
    with matplotlib.rc_context({"svg.hashsalt": "jaxrl"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return figure
