"""Rewrite the indices of the functions in docs/losses.md and docs/parts.md from their docstrings,
and docs/losses_by_name.md from jaxrl/core/aliases.yaml.

    python experiments/document_losses.py

Everything above the marker line is written by hand; a test holds the pages to what this writes.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxrl import diffusion, gradients, losses, solvers
from jaxrl.algorithms import registry
from jaxrl.core.aliases import aliases

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOSSES, PARTS = DOCS / "losses.md", DOCS / "parts.md"
PAGES = {LOSSES: [losses], PARTS: [diffusion, gradients, solvers]}
BY_NAME = DOCS / "losses_by_name.md"
MARKER = "<!-- The rest is written by experiments/document_losses.py from the docstrings. -->\n"

BY_NAME_HEAD = """<!-- Written by experiments/document_losses.py from jaxrl/core/aliases.yaml. -->

# Losses by the name that people type

What a paper or another library calls something, and what it is here: functions of `jaxrl.losses` or
of another room (`gradients.`, `solvers.`, `diffusion.`), and `agents.`. What is not here says so.
"""


def modules(room: ModuleType) -> list[ModuleType]:
    """The files of a room that define functions, in the order of their names."""
    found = pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
    return [importlib.import_module(name) for name in sorted(m.name for m in found if not m.ispkg)]


def first_sentence(text: str) -> str:
    return text.strip().split("\n\n")[0].replace("\n", " ").rstrip(".").replace("|", "\\|")


def paper(docstring: str) -> str:
    """The first work under "Source:", in one line."""
    source = " ".join(docstring.split("Source:")[1].split("Example:")[0].split())
    return source.split(";")[0].rstrip(".").replace("|", "\\|")


def table(module: ModuleType) -> str:
    rows = ["| name | what | source |", "|---|---|---|"]
    for function in module.__all__:
        docstring = inspect.getdoc(getattr(module, function)) or ""
        if "Source:" in docstring:  # named tuples of results have none
            rows.append(f"| `{function}` | {first_sentence(docstring)} | {paper(docstring)} |")
    return "\n".join(rows)


def index(rooms: list[ModuleType]) -> str:
    """Return a section for each folder, and for each file in none, with its tables folded."""
    sections = []
    for name, group in groupby((m for room in rooms for m in modules(room)), _heading):
        members = list(group)
        package = importlib.import_module(members[0].__name__.rpartition(".")[0])
        if name == members[0].__name__.rpartition(".")[2]:
            said = f"{first_sentence(members[0].__doc__ or '')}."
        else:
            said = (package.__doc__ or "").strip()
        files = [_file(module) for module in members]
        count = sum(text.count("\n| `") for text in files)
        functions = f"{count} function{'s' if count > 1 else ''}"
        folded = [f"<details><summary>{functions}</summary>", *files, "</details>"]
        sections += [f"## {name}", said, *folded]
    return "\n\n".join(sections) + "\n"


def _heading(module: ModuleType) -> str:
    """Return the section of a file: its folder, or itself if it is in no folder of the losses."""
    folder, _, name = module.__name__.rpartition(".")
    return name if folder == losses.__name__ else folder.rpartition(".")[2]


def _file(module: ModuleType) -> str:
    """Return the heading and the table of a file."""
    name, path = module.__name__.rpartition(".")[2], module.__name__.replace(".", "/") + ".py"
    head = f"### [{name}](../{path})\n\n{first_sentence(module.__doc__ or '')}."
    body = f'<div class="stacked" markdown="1">\n\n{table(module)}\n\n</div>'
    return f"{head}\n\n{body}"


def page_text(page: Path) -> str:
    return page.read_text().split(MARKER)[0] + MARKER + "\n" + index(PAGES[page])


def by_name() -> str:
    """The page of aliases: a function leads to its file."""
    rows = ["| name | here |", "|---|---|"]
    for alias, here in sorted(aliases().items(), key=lambda entry: entry[0].lower()):
        text = here if isinstance(here, str) else ", ".join(map(link, here))
        rows.append(f"| {alias} | {text} |")
    return f"{BY_NAME_HEAD}\n" + "\n".join(rows) + "\n"


def link(name: str) -> str:
    """A function, or an agent, with a link to the file that defines it."""
    found = find(name)
    path = found.__module__ if inspect.isfunction(found) else found
    return f"[`{name}`](../{path.replace('.', '/')}.py)"


def find(name: str) -> Any:
    """The function that an alias names, or the module of the agent. Raises where there is none."""
    room, _, last = name.rpartition(".")
    if room == "agents":
        return registry.built_in()[last].partition(":")[0]
    return getattr(importlib.import_module(f"jaxrl.{room or 'losses'}"), last)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(page_text(page))
    BY_NAME.write_text(by_name())
