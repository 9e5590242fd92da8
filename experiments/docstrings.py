"""Docstrings of this package as Markdown, for generated pages."""

from __future__ import annotations

import re
import textwrap


def first_line(text: str) -> str:
    """Return the first paragraph of a text on one line."""
    return " ".join(text.split("\n\n")[0].split())


def fence(text: str, language: str) -> str:
    """Return a block of code."""
    return f"````{language}\n{text}\n````"


def as_markdown(docstring: str) -> str:
    """A docstring as Markdown: sections in bold, what lists names as a list, formulas as code."""
    docstring = re.sub(r"\]\[(?=[^`]*(?:`[^`]*`[^`]*)*$)", "]&#91;", docstring)  # no reference
    return "\n\n".join(map(block, re.split(r"\n\s*\n|\n(?=[A-Z]\w+:(?: |$))", docstring)))


SECTION = r"(Args|Returns|Raises|Gradients|Source|Example|Yields):(.*)"
ENTRY = r"[`*\w][\w`*., ()\[\]/-]*(?::| ->|  )"


def block(paragraph: str) -> str:
    """One paragraph or section."""
    if section := re.match(SECTION, paragraph, re.DOTALL):
        title, text = section[1], textwrap.dedent(section[2].removeprefix(" ").lstrip("\n"))
        if title in ("Args", "Raises"):
            return f"**{title}**\n\n{list_entries(text)}"
        return f"**{title}:** {text if title == 'Example' else ' '.join(text.split())}"
    if paragraph.startswith(("    ", "- ", "|", "#", ">>>")):
        return paragraph
    lines = paragraph.splitlines()
    entries = [line for line in lines if not line.startswith(" ")]
    if len(lines) > 1 and all(re.match(ENTRY, line) for line in entries):
        return list_entries(paragraph)
    if re.search(r"[=+*/^<>|-]", paragraph) and not re.search(r"[.:;!?`]\)?$", paragraph.strip()):
        return fence(paragraph, "text")
    return paragraph


def list_entries(text: str) -> str:
    """`name: meaning`, each of which may go on in lines that are further in, as a list."""
    entries: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line.strip())
    entries = [re.sub(r"^(\w+) {2,}", r"\1: ", entry) for entry in entries]
    named = (re.sub(r"^([*\w][\w*, ]*?)(:| ->)", r"`\1`\2", entry) for entry in entries)
    return "\n".join(f"- {entry}" for entry in named)
