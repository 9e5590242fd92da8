"""A page in one HTML file: its style, elements with escaped text, and embedded figures."""

from __future__ import annotations

import base64
import io
import re
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

KINDS = {".gif": "image/gif", ".mp4": "video/mp4", ".png": "image/png"}

# Figures are drawn dark on white. A dark page inverts their lightness and keeps their hues.
STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --faint: #63636a; --paper: #fff; --line: #dcdce0;
  --tint: #f5f5f7; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e9e9ec; --faint: #a0a0a8; --paper: #141416; --line: #38383d; --tint: #1f1f23;
    --warn: #ffbf69; }
  svg { filter: invert(0.92) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 24px 16px 48px; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 1.3rem; margin: 40px 0 8px; padding-top: 16px; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 24px 0 8px; }
h1, h2, h3, p, li, dd { overflow-wrap: anywhere; }
p, ul { max-width: 75ch; margin: 8px 0; }
ul { padding-left: 20px; }
figcaption { font-weight: 600; margin: 16px 0 8px; }
.faint, dt { color: var(--faint); }
.warn { color: var(--warn); }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 14px 5px 0; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 9em; }
.side { display: grid; gap: 0 16px;
  align-items: start; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
figure { margin: 8px 0; min-width: 0; }
svg { display: block; width: 100%; max-width: 640px; height: auto; }
svg text { font-family: system-ui, sans-serif !important; }
img, video { max-width: 100%; height: auto; max-height: 320px; border-radius: 4px; }
article { min-width: 0; margin-top: 16px; padding: 4px 16px 12px; background: var(--tint);
  border-radius: 8px; }
dl { display: grid; grid-template-columns: auto 1fr; gap: 2px 12px; margin: 8px 0;
  font-size: 0.9rem; }
dd { margin: 0; }
pre { margin: 8px 0; padding: 8px 10px; background: var(--paper); border: 1px solid var(--line);
  border-radius: 6px; font-size: 0.8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; }
"""


class Html(str):
    """Text that is already markup. All other text is escaped."""


def element(name: str, *inside: Any, **attributes: Any) -> Html:
    """Return `<name attributes>inside</name>`; `class_` is the attribute class."""
    text = "".join(f' {k.rstrip("_")}="{escape(str(v))}"' for k, v in attributes.items())
    return Html(f"<{name}{text}>{join(inside)}</{name}>")


def join(parts: Iterable[Any]) -> Html:
    """Join parts to one piece of markup, escaping those that are text."""
    return Html("".join(x if isinstance(x, Html) else escape(str(x)) for x in parts))


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Html:
    """Return a table whose first column holds names, the others numbers. A wide table scrolls."""
    row = lambda cell, values: element("tr", *(element(cell, x) for x in values))
    body = [row("td", values) for values in rows]
    inside = element("thead", row("th", head)), element("tbody", *body)
    return element("div", element("table", *inside), class_="wide", tabindex=0)


def definition_list(pairs: Iterable[tuple[Any, Any]]) -> Html:
    """Return a list of names with their values."""
    lines = (element("dt", name) + element("dd", value) for name, value in pairs)
    return element("dl", *map(Html, lines))


def image(path: Path, words: str) -> Html:
    """Return an image or a video file, embedded in the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    source = f"data:{KINDS[path.suffix]};base64,{data}"
    if path.suffix == ".mp4":
        return Html(
            f'<video controls loop muted aria-label="{escape(words)}" src="{source}"></video>'
        )
    return Html(f'<img alt="{escape(words)}" src="{source}">')


def svg_figure(figure: Any, words: str, caption: str) -> Html:
    """Embed a matplotlib figure as a transparent SVG with selectable text.

    Its ids differ from those of all other figures on the page. `words` describe it to readers who
    cannot see it.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a $ in a name is a $
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxrl"}):
        figure.savefig(out, format="svg", transparent=True)
    svg = re.sub(r"<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    svg = svg[svg.index("<svg") :]
    mark = f"f{zlib.crc32((words + svg).encode()):x}-"
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{mark}", svg)
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(words)}"', 1)
    return element("figure", element("figcaption", caption), Html(svg))


def page(title: str, *body: Any) -> str:
    """Return a whole HTML page."""
    head = element(
        "head",
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Html(STYLE)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n"
