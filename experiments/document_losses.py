"""Rewrite the indices of the functions in docs/losses.md and docs/parts.md from their docstrings.

    python experiments/document_losses.py

Everything above the marker line is written by hand; a test holds the pages to what this writes.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

from jaxrl import diffusion, gradients, losses, solvers

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOSSES, PARTS = DOCS / "losses.md", DOCS / "parts.md"
PAGES = {LOSSES: [losses], PARTS: [diffusion, gradients, solvers]}
MARKER = "<!-- The rest is written by experiments/document_losses.py from the docstrings. -->\n"


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
    """A section for each folder, and in it for each of its files."""
    sections, last = [], ""
    for module in (module for room in rooms for module in modules(room)):
        folder, _, name = module.__name__.rpartition(".")
        alone = folder == losses.__name__  # a file of the losses that is in no folder
        if folder != last and not alone:
            package = importlib.import_module(folder)
            sections.append(f"## {folder.rpartition('.')[2]}\n\n{(package.__doc__ or '').strip()}")
        last = folder
        path = module.__name__.replace(".", "/") + ".py"
        level = "##" if alone else "###"
        sections.append(f"{level} [{name}](../{path})\n\n{first_sentence(module.__doc__ or '')}.")
        sections.append(table(module))
    return "\n\n".join(sections) + "\n"


def written(page: Path) -> str:
    return page.read_text().split(MARKER)[0] + MARKER + "\n" + index(PAGES[page])


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page))
