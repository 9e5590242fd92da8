"""Numbers and prose for pages (Markdown as GitHub shows it)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

NOTE = "<!-- Written by `experiments/evidence/run.py --pages` from the records; do not edit. -->\n"


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


def duration(seconds: float) -> str:
    """Return a time in the unit that needs one to three digits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
