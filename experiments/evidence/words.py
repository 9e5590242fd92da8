"""Numbers and prose for pages (Markdown as GitHub shows it) and pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

NOTE = "<!-- Written by `experiments/evidence/run.py --pages` from the records; do not edit. -->\n"
LETTER = 12  # the height of letters in pictures


def escape(words: str) -> str:
    """Return prose on one line, escaped so that no part of it is read as HTML."""
    return " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;")


def cell(value: Any) -> str:
    """Return prose that can stand in a table."""
    return escape(str(value)).replace("|", "\\|")


def todays(text: str) -> str:
    """Return a sentence of a record in the words of today: "environment" for "world"."""
    return re.sub(r"\b([Ww])orld(s?)\b(?! model)", _environment, text)


def _environment(found: re.Match[str]) -> str:
    return f"{'Environment' if found[1] == 'W' else 'environment'}{found[2]}"


def clip(words: str, most: int) -> str:
    """Cut text between two words, to at most `most` characters."""
    if len(words) <= most:
        return words
    return words[: most - 1].rpartition(" ")[0].rstrip(",;:") + "…"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table; cells are escaped."""
    lines = [head, ["---"] * len(head), *([cell(x) for x in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def capital(text: str) -> str:
    """Return text with a capital first letter."""
    return text[:1].upper() + text[1:]


def number(x: float | None) -> str:
    """Return three digits, with an exponent only if needed; "?" for what is not finite."""
    if x is None or not math.isfinite(x):
        return "?"
    return f"{float(f'{x:.3g}'):g}".replace("e-0", "e-").replace("e+0", "e")


def text_width(words: str, bold: bool = False) -> float:
    """Estimate the width of a text in units of a picture."""
    widths = dict.fromkeys(" iljtfrI.,:;'|!()[]-", 0.42) | dict.fromkeys("mwMW@%", 1.0)
    wide = sum(widths.get(c, 0.72 if c.isupper() else 0.64) for c in words)
    return wide * LETTER * (1.12 if bold else 1.0)


def wrap(words: str, width: float, bold: bool = False) -> list[str]:
    """Break text into lines of at most this width, and words that are too long."""
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
    """Return a time in the unit that needs one to three digits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
