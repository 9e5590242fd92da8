"""Numbers and prose for the pages (Markdown as GitHub shows it) and the pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

NOTE = "<!-- Written by experiments/evidence/pages.py from the records; do not edit. -->\n"
NAMES = {"token-rl": "Token RL", "multi-agent": "Multi-agent"}  # not said by rule
LETTER = 12  # the height of letters in pictures


def escape(words: str) -> str:
    """Prose on one line, of which nothing is taken for HTML."""
    return " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;")


def cell(value: Any) -> str:
    """Prose in a table."""
    return escape(str(value)).replace("|", "\\|")


def clip(words: str, most: int) -> str:
    """At most so many characters, cut between two words."""
    if len(words) <= most:
        return words
    return words[: most - 1].rpartition(" ")[0].rstrip(",;:") + "…"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a table; cells are escaped."""
    lines = [head, ["---"] * len(head), *([cell(x) for x in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def name_of(track: str) -> str:
    """A track or a verdict as a heading."""
    return NAMES.get(track, track[:1].upper() + track[1:].replace("-", " "))


def number(x: float | None) -> str:
    """Three digits, without an exponent where none is needed; "?" for what is no number."""
    if x is None or not math.isfinite(x):
        return "?"
    return f"{float(f'{x:.3g}'):g}".replace("e-0", "e-").replace("e+0", "e")


def text_width(words: str, bold: bool = False) -> float:
    """About how many units wide a text is at `LETTER`."""
    widths = dict.fromkeys(" iljtfrI.,:;'|!()[]-", 0.42) | dict.fromkeys("mwMW@%", 1.0)
    wide = sum(widths.get(c, 0.72 if c.isupper() else 0.64) for c in words)
    return wide * LETTER * (1.12 if bold else 1.0)


def wrap(words: str, width: float, bold: bool = False) -> list[str]:
    """The text in lines that are no wider than that; a word that is too long is broken."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, bold) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if text_width(lines[-1] + letter, bold) > width:
                lines.append("")
            lines[-1] += letter
    return lines


def duration(seconds: float) -> str:
    """In the unit in which it is a number of one to three digits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
