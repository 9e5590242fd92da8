"""Pictures of the evidence as SVG: effects in units of their margins, and seeds as dots.

They are as wide as a phone and follow the reader's light or dark scheme. Widths of text are
estimated from those of DejaVu Sans, which is wider than the fonts of most readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from experiments.evidence.words import LETTER, number, text_width, wrap

WIDTH, LEFT, RIGHT = 390, 154, 370  # of the picture; where the axes begin and end
PAD, LINE = 10, 15  # margin; from one line of text to the next
FARTHEST = 31.0  # margins; an effect farther away is an arrow
DOT = 3.2  # radius
STYLE = """
text{font-family:-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.back{fill:#fff}.ink{fill:#1f2328}.faint{fill:#59636e}.band{fill:#2da44e;fill-opacity:.15}
.grid{stroke:#d1d9e0}.zero{stroke:#818b98}.holds{fill:#0072b2;stroke:#0072b2}
.fails{fill:#d55e00;stroke:#d55e00}.open{fill:#fff;stroke:#6e7781}.seed{fill:#0072b2}
.mean{stroke:#1f2328}.before{fill:none;stroke:#59636e}.limit{stroke:#d55e00}
@media (prefers-color-scheme:dark){
.back{fill:#0d1117}.ink{fill:#f0f6fc}.faint{fill:#9198a1}
.grid{stroke:#2a313a}.zero{stroke:#656c76}.holds{fill:#56b4e9;stroke:#56b4e9}
.fails{fill:#ff9a4d;stroke:#ff9a4d}.open{fill:#0d1117;stroke:#a7aeb6}.seed{fill:#56b4e9}
.mean{stroke:#f0f6fc}.before{fill:none;stroke:#9198a1}.limit{stroke:#ff9a4d}
}"""
COLORS = {"holds": "holds", "does not hold": "fails"}


class Effect(NamedTuple):
    """A clause with its result, in the margin's units. None stands for a value that is not finite.

    kind: "better", "not worse" or "equal".
    """

    text: str
    kind: str
    verdict: str
    margin: float
    value: float | None
    low: float | None
    high: float | None

    def in_margins(self) -> tuple[float, float, float] | None:
        """Return value, low and high in units of the margin; if that is 0, of half the interval."""
        if self.value is None or math.isnan(self.value):
            return None
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        unit = self.margin or (high - low) / 2 or 1.0
        if math.isinf(unit):  # no margin and no interval: nothing to measure by
            unit = 1.0
        return self.value / unit, low / unit, high / unit

    def band(self) -> tuple[float, float]:
        """Return where the whole interval must lie, in units of the margin."""
        one = 1.0 if self.margin else 0.0
        return {"better": (one, math.inf), "not worse": (-one, math.inf)}.get(
            self.kind, (-one, one)
        )


class Panel(NamedTuple):
    """Seeds of several sides on one axis.

    rows: label -> a value for each seed. before: label -> the value before learning. reach: the
    metric's lowest and highest value. limits: values to mark.
    """

    title: str
    rows: Mapping[str, Sequence[float | None]]
    before: Mapping[str, float] = {}
    reach: tuple[float, float] | None = None
    limits: Sequence[float] = ()
    logarithmic: bool = False


# ------------------------------------------------------------------------------- pictures


def effects(title: str, groups: Mapping[str, Sequence[Effect]]) -> str:
    """Draw a line for each effect, under the name of its claim, on one axis of margins.

    The axis is logarithmic away from 0. The line must lie in the shaded band for the clause to
    hold.
    """
    found = [e.in_margins() for group in groups.values() for e in group]
    numbers = [x for three in found if three for x in three]
    low, high = max(-FARTHEST, min([-2.0, *numbers])), min(FARTHEST, max([3.0, *numbers]))

    def squash(x: float) -> float:
        return math.copysign(math.log2(1 + abs(x)), x)

    at = _axis(squash(low), squash(high), squash)
    y, rows = PAD + 2 * LINE + 8, []
    for name, group in groups.items():
        rows.append(_text(PAD, y, name, bold=True))
        y += 6
        for effect in group:
            lines = wrap(effect.text, LEFT - PAD - 12)
            tall = len(lines) * LINE + 4
            rows += [_text(PAD, y + (i + 1) * LINE, line) for i, line in enumerate(lines)]
            rows += _interval(effect, y + 3, tall - 3, at)
            y += tall
        y += 12 + LINE
    y -= LINE
    ticks = [t for t in (0.0, 1.0, -1.0, 4.0, -4.0, 16.0, -16.0) if low <= t <= high]
    grid = [*_grid(ticks, at, PAD + LINE + 4, y, zero=True), *_labels(ticks, at, PAD + LINE - 2)]
    grid += [*_labels(ticks, at, y + LINE), _text(PAD, PAD + LINE - 2, "in margins", "faint")]
    return _svg(title, y + LINE + PAD, [*grid, *rows])


def dots(title: str, panels: Sequence[Panel]) -> str:
    """Draw a dot for each seed and a bar at their mean: a row for each side, a panel each."""
    y, rows = PAD, []
    for panel in panels:
        for line in wrap(panel.title, WIDTH - 2 * PAD, bold=True):
            y += LINE
            rows.append(_text(PAD, y, line, bold=True))
        y += 6
        top, at, ticks = y, *_scale(panel)
        marks: list[str] = []
        for label, values in panel.rows.items():
            good = [v for v in values if v is not None and math.isfinite(v)]
            lost = f", {len(values) - len(good)} not finite" if len(good) < len(values) else ""
            lines = [(line, "ink") for line in wrap(label, LEFT - PAD - 12)]
            said = _summary(panel, good) + lost
            lines += [(line, "faint") for line in wrap(said, LEFT - PAD - 12)]
            tall = len(lines) * LINE + 10
            marks += [_text(PAD, y + (i + 1) * LINE, *line) for i, line in enumerate(lines)]
            marks += _seeds(panel, good, panel.before.get(label), y + tall / 2, at)
            y += tall
        rows += [*_grid(ticks, at, top, y), *_labels(ticks, at, y + LINE)]
        dashes = 'stroke-dasharray="4 3"'
        rows += [_line(at(x), top, at(x), y, "limit", dashes) for x in panel.limits]
        rows += marks
        y += 2 * LINE
    return _svg(title, y, rows)


# ------------------------------------------------------------------------------- their parts


def _interval(effect: Effect, y: float, tall: float, at: Callable) -> Iterator[str]:
    start, end = (at(x) for x in effect.band())
    box = f'x="{start:.1f}" y="{y:.1f}" width="{end - start:.1f}" height="{tall:.1f}"'
    yield f'<rect class="band" {box}/>'
    three, middle = effect.in_margins(), y + tall / 2
    if three is None:
        yield _text((LEFT + RIGHT) / 2, middle + 4, "no value", "faint", anchor="middle")
        return
    kind = COLORS.get(effect.verdict, "open")
    value, low, high = (at(x) for x in three)
    yield _line(low, middle, high, middle, kind, 'stroke-width="2"')
    for beyond, tip, base in (
        (three[1] < -FARTHEST, LEFT, LEFT + 7),
        (three[2] > FARTHEST, RIGHT, RIGHT - 7),
    ):
        if beyond:
            d = f"M{tip} {middle:.1f}L{base} {middle - 4:.1f}V{middle + 4:.1f}z"
            yield f'<path class="{kind}" d="{d}"/>'
    if abs(three[0]) > FARTHEST:
        return  # the arrow shows it
    if kind == "fails":  # a square, for readers who cannot tell the colors apart
        yield f'<rect class="fails" x="{value - 4:.1f}" y="{middle - 4:.1f}" width="8" height="8"/>'
    else:
        spot = f'cx="{value:.1f}" cy="{middle:.1f}" r="4.2"'
        yield f'<circle class="{kind}" {spot} stroke-width="1.5"/>'


def _seeds(panel: Panel, values, before: float | None, y: float, at: Callable) -> Iterator[str]:
    placed: list[tuple[float, float]] = []
    for x in sorted(at(v) for v in values):
        for up in (0, -1, 1, -2, 2):  # the first height at which it touches no dot
            spot = (x, y + up * 5)
            if all(math.dist(spot, other) > 1.5 * DOT for other in placed):
                break
        placed.append(spot)
        yield f'<circle class="seed" cx="{x:.1f}" cy="{spot[1]:.1f}" r="{DOT}" fill-opacity="0.7"/>'
    if values and not panel.logarithmic:
        x = at(sum(values) / len(values))
        yield _line(x, y - 10, x, y + 10, "mean", 'stroke-width="2"')
    if before is not None:
        x = at(before)
        yield f'<path class="before" stroke-width="1.5" d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"/>'


def _summary(panel: Panel, values: Sequence[float]) -> str:
    if not values:
        return "no value"
    if panel.logarithmic:
        return f"{number(min(values))} to {number(max(values))}"
    return f"mean {number(sum(values) / len(values))}"


def _scale(panel: Panel) -> tuple[Callable[[float], float], list[float]]:
    """Return the function from values to places, and the ticks.

    The axis is the metric's reach if the values fill a quarter of it.
    """
    values = [v for row in panel.rows.values() for v in row if v is not None and math.isfinite(v)]
    values += [*panel.before.values(), *panel.limits]
    if panel.logarithmic:
        powers = [math.log10(v) for v in values if v > 0] or [-12.0, 0.0]
        low, high = math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1
        at = _axis(low, high, lambda v: math.log10(v) if v > 0 else low)
        return at, [10.0**k for k in range(low + 1, high, max(1, (high - low) // 5))]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if panel.reach and high - low >= (panel.reach[1] - panel.reach[0]) / 4:
        low, high = min(low, panel.reach[0]), max(high, panel.reach[1])
    gap = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    low, high = low - gap, high + gap
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (k * step) <= 5)
    ticks = [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return _axis(low, high, lambda v: v), ticks


def _axis(low: float, high: float, of: Callable[[float], float]) -> Callable[[float], float]:
    """Return the function from a value to its place between `LEFT` and `RIGHT`."""

    def at(x: float) -> float:
        part = (of(x) - low) / (high - low) if math.isfinite(x) else float(x > 0)
        return LEFT + (RIGHT - LEFT) * min(max(part, 0.0), 1.0)

    return at


def _grid(ticks, at: Callable, top: float, bottom: float, zero: bool = False) -> Iterator[str]:
    for x in ticks:
        yield _line(at(x), top, at(x), bottom, "zero" if zero and x == 0 else "grid")


def _labels(ticks: Sequence[float], at: Callable, y: float) -> Iterator[str]:
    """Draw the numbers under the ticks, except those that would touch one before them."""
    taken: list[tuple[float, float]] = []
    for x in ticks:
        half = text_width(number(x)) / 2 + 3
        if at(x) + half > WIDTH or any(abs(at(x) - spot) < half + other for spot, other in taken):
            continue
        taken.append((at(x), half))
        yield _text(at(x), y, number(x), "faint", anchor="middle")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str, more: str = "") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def _text(x: float, y: float, words: str, kind="ink", anchor="start", bold=False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" font-size="{LETTER}" '
        f'text-anchor="{anchor}"{weight}>{escape(words)}</text>'
    )


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label={quoteattr(title)}>'
    )
    back = f'<rect class="back" width="{WIDTH}" height="{height:.0f}" rx="6"/>'
    return "\n".join([head, f"<style>{STYLE}\n</style>", back, *parts, "</svg>"]) + "\n"
