"""Rewrite the index in docs/losses.md from the docstrings of `jaxrl.losses`.

    python experiments/document_losses.py

Everything above the marker line is written by hand; a test holds the page to what this would write.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

from jaxrl import losses

PAGE = Path(__file__).resolve().parents[1] / "docs" / "losses.md"
MARKER = "<!-- The rest is written by experiments/document_losses.py from the docstrings. -->\n"


def modules() -> list[ModuleType]:
    """The files that define functions, in the order of their names."""
    found = pkgutil.walk_packages(losses.__path__, "jaxrl.losses.")
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


def index() -> str:
    sections, group = [], ""
    for module in modules():
        *folder, name = module.__name__.split(".")[2:]
        if folder and folder[0] != group:
            group = folder[0]
            package = importlib.import_module(f"jaxrl.losses.{group}")
            sections.append(f"## {group}\n\n{package.__doc__}")
        path = "/".join((*folder, name)) + ".py"
        sections.append(
            f"### [{name}](../jaxrl/losses/{path})\n\n{first_sentence(module.__doc__ or '')}."
        )
        sections.append(table(module))
    return "\n\n".join(sections) + "\n"


def page() -> str:
    return PAGE.read_text().split(MARKER)[0] + MARKER + "\n" + index()


if __name__ == "__main__":
    PAGE.write_text(page())
