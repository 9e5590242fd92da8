"""Write docs/papers.md: every paper of the index, what implements it here, and its claim.

    python experiments/document_papers.py

A test holds the page to what this writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from jaxrl.algorithms.families import heading
from jaxrl.papers import index
from jaxrl.papers.index import Paper, Part

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "papers.md"

HEAD = """<!-- Written by experiments/document_papers.py from jaxrl/papers and docstrings. -->

# Papers

Every paper that jaxrl implements or sets out to implement. To look one up, search this page for a
word of its title, or ask the command:

    jaxrl list papers dpo
    jaxrl list papers quantile regression

**Of {papers} papers, {algorithms} have an algorithm here, {parts} more have parts (losses,
estimators, solvers, networks, environments), and {missing} are not here yet.** A part is listed if
its docstring names the paper as its source; parts need not add up to the whole of a paper.

- A *claim* is what the paper asserts, tested here at a small scale; [CLAIMS.md](../CLAIMS.md) says
  what the verdicts mean. Where none can be tested, the table says why.
- *Class* says what jaxrl plans: A is core, B is built at a reduced scale, C is an idea or a
  diagnostic to absorb. A paper without a class is on no such list, but is implemented here."""


def page() -> str:
    """Return the whole page."""
    families = {family: list(x) for family, x in groupby(index.papers().values(), _family)}
    counts = _counts([paper for group in families.values() for paper in group])
    sections = [HEAD.format(**counts), _overview(families)]
    sections += [f"## {heading(family)}\n\n{_table(group)}" for family, group in families.items()]
    return "\n\n".join(sections) + "\n"


def _family(paper: Paper) -> str:
    return paper.family


def anchor(heading: str) -> str:
    """Return what a link to a heading ends in."""
    return heading.lower().replace(" ", "-")


def _parts(paper: Paper) -> tuple[Part, ...]:
    return index.implementations().get(paper.id, ())


def _counts(papers: list[Paper]) -> dict[str, int]:
    """Numbers of papers: all, with an algorithm, with other parts alone, and with nothing."""
    trained = sum(any(part.is_algorithm for part in _parts(paper)) for paper in papers)
    missing = sum(not _parts(paper) for paper in papers)
    parts = len(papers) - trained - missing
    return {"papers": len(papers), "algorithms": trained, "parts": parts, "missing": missing}


def _overview(families: Mapping[str, list[Paper]]) -> str:
    """A row of counts for each family."""
    rows = ["| family | papers | algorithm here | parts here | not yet | claims that hold |"]
    rows += ["|---|---|---|---|---|---|"]
    for family, papers in families.items():
        said = [verdict for paper in papers for verdict in index.verdicts(paper).values()]
        held = f"{said.count('holds')} of {len(said)}" if said else ""
        link = f"[{heading(family)}](#{anchor(heading(family))})"
        rows.append(f"| {' | '.join(map(str, [link, *_counts(papers).values(), held]))} |")
    return "\n".join(rows)


def _table(papers: list[Paper]) -> str:
    """The papers of a family: those with something here first, then by title."""
    rows = ["| paper | class | here | claim |", "|---|---|---|---|"]
    for paper in sorted(papers, key=lambda paper: (not _parts(paper), paper.title.lower())):
        here = ", ".join(map(_link, _parts(paper))) or "not yet"
        rows.append(f"| {_title(paper)} | {paper.tier} | {here} | {_claims(paper)} |")
    return "\n".join(rows)


def _title(paper: Paper) -> str:
    """Title, other titles, year and arXiv number."""
    number = f"[{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else ""
    begins = paper.title.lower().startswith
    also = [f"also *{x}*" for x in paper.also if not x[0].isdigit() and not begins(x.lower())]
    about = ", ".join(filter(None, [str(paper.year or ""), number, *also]))
    title = paper.title.replace("*", r"\*")
    return f"`{paper.id}` {title}" + (f" ({about})" if about else "")


def _link(part: Part) -> str:
    return f"[`{part.name}`](../{part.path})"


def _claims(paper: Paper) -> str:
    """Verdicts, each linked to the declaration of its claim."""
    found = []
    for id, verdict in index.verdicts(paper).items():
        (path,) = (ROOT / "experiments" / "claims").glob(f"*/{id.replace('-', '_')}.py")
        label = verdict if id == paper.id else f"{id}: {verdict}"
        found.append(f"[{label}](../{path.relative_to(ROOT).as_posix()})")
    return "; ".join(found) or (f"none: {paper.no_claim}" if paper.no_claim else "not yet")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
