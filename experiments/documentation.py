"""Make what the site holds beside the pages in docs/: hooks that mkdocs calls (mkdocs.yml).

- A page of each claim and of each family of claims, from declarations and records.
- A page of reference for each module (for each folder of losses and environments).
- The records of speed.
- ARCHITECTURE.md and its neighbors, and every file of the repository that a page links to.

Pages link to files as they lie in the repository, so that the links also work there; in the site a
link to a module leads to its reference, one to another file to a page that shows it.
"""

from __future__ import annotations

import ast
import functools
import json
import posixpath
import re
import statistics
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

from experiments import document_algorithms
from experiments.docstrings import as_markdown, fence, first_line
from experiments.evidence import listing, run
from experiments.evidence import pages as claim_pages
from jaxrl.algorithms.families import NAMES

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "bench" / "results"
# Pages that lie elsewhere in the repository -> where they are in the site.
INCLUDED = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CLAIMS.md": "claims.md",
    "experiments/bench/README.md": "speed/measuring.md",
}
# What else pages link to, that has a page of another name in the site.
ELSEWHERE = {
    "README.md": "index.md",
    "configs": "algorithms/index.md",
    "jaxrl/algorithms": "algorithms/index.md",
    "jaxrl/losses": "losses.md",
}
ORIGIN = {page: file for file, page in INCLUDED.items()}
BY_FOLDER = ("algorithms", "envs", "losses")  # rooms with folders: a page for each of these
ALIAS = re.compile(r"^\| (?!name \|)([^|]+) \| (.*) \|$", re.MULTILINE)  # a row of losses by name
ALIASES_FIRST = 5  # how much more a name of a loss counts in a search than text elsewhere
DETAILED = tuple(f"algorithms/{name}.md" for name in document_algorithms.DETAILED)
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
LARGEST = 100_000  # bytes of a file that is shown on a page rather than handed over
# Perhaps with the name that is its text, as in [`gae`](...).
LINK = re.compile(r"(?:\[`([\w.]+)`)?\]\(([^)\s#]+)(#[^)\s]*)?\)|\b(?:src|href)=\"([^\"#:]+)\"")


# ------------------------------------------------------------------------------- what mkdocs calls


def on_config(config: Any) -> Any:
    """Adds the generated sections to the navigation."""
    after = next(i for i, entry in enumerate(config.nav) if "Losses" in entry) + 1
    config.nav[after:after] = [
        {"Algorithms": ["algorithms/index.md", *document_algorithms.navigation()]},
        {"Claims": ["claims.md", *claim_families(), "claims/failures.md"]},
    ]
    config.nav.append({"Reference": ["reference/index.md", *reference_nav()]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages, and the files that pages link to."""
    pages = {page: (ROOT / file).read_text() for file, page in INCLUDED.items()}
    pages["speed/records.md"] = speed()
    pages |= {uri: text for uri, text in claims().items() if uri.endswith(".md")}
    for uri in claims().keys() - pages.keys():
        files.append(File.generated(config, uri, content=claims()[uri]))
    pages |= reference_pages()
    written = {f.src_uri: f.content_string for f in files.documentation_pages()}
    linked = {
        path
        for uri, text in (pages | written).items()
        for path in targets(text, uri)
        if site_uri(path).startswith("files/")
    }
    for path in sorted(linked):
        uri, source = site_uri(path), ROOT / path
        if uri.endswith(".md"):
            pages[uri] = f"{UNSEARCHED}# {path}\n\n{fence(source.read_text(), source.suffix[1:])}"
        else:
            files.append(File.generated(config, uri, abs_src_path=str(source)))
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them, also of what the indices of losses and parts list; what is folded
    is Markdown too."""
    markdown = re.sub(r"^\s*<!--.*?-->\s*", "", markdown)  # the title has to come first
    if page.file.src_uri == "losses_by_name.md":
        page.meta["search"] = {"boost": ALIASES_FIRST}
        place = lambda row: f'| <span id="{slug(row[1])}"></span>{row[1]} | {row[2]} |'
        markdown = ALIAS.sub(place, markdown)
    if page.file.src_uri in DETAILED:  # "ppo" should find PPO before what is named after it
        page.meta["search"] = {"boost": 3}
    if page.file.src_uri in ("losses.md", "parts.md"):
        markdown = index(markdown)
    return relink(markdown, page.file.src_uri).replace("<details>", '<details markdown="1">')


def on_post_build(config: Any) -> None:
    """Gives the search an entry for each name of a loss, which leads to its row.

    Otherwise it would find "V-trace" on pages about anything called v.
    """
    file = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(file.read_text(encoding="utf-8"))
    rows = ALIAS.findall((ROOT / "docs" / "losses_by_name.md").read_text(encoding="utf-8"))
    index["docs"] += [
        {
            "location": f"losses_by_name.html#{slug(name)}",
            "title": escape(name),
            "text": escape(re.sub(r"\[`([^`]*)`\]\([^)]*\)", r"\1", here)),
            "boost": ALIASES_FIRST,
        }
        for name, here in rows
    ]
    file.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


def slug(name: str) -> str:
    """Return the anchor of a name: "td-lambda" of "TD(lambda)", "a-plus" of "A++"."""
    name = name.lower().replace("++", " plus")
    return re.sub(r"\W+", "-", name).strip("-")


def on_page_content(html: str, **_: Any) -> str:
    """Code of functions is not searched: it would double the index."""
    source = '<details class="mkdocstrings-source"'
    return html.replace(source, f"{source} data-search-exclude")


# ------------------------------------------------------------------------------- links


def targets(text: str, uri: str) -> Iterator[str]:
    """The files of the repository that the page `uri` links to, from the repository's root."""
    for part in parts(text)[::2]:
        for link in LINK.finditer(part):
            if path := target(link[2] or link[4], uri):
                yield path


def target(link: str, uri: str) -> str:
    """Return what a link of the page `uri` leads to; "" for one that leaves the repository."""
    if "://" in link or link.startswith("mailto:"):
        return ""
    folder = posixpath.dirname(ORIGIN.get(uri, f"docs/{uri}"))
    return posixpath.normpath(posixpath.join(folder, link))


def site_uri(path: str) -> str:
    """Return where the site has a file of the repository."""
    found = INCLUDED.get(path) or ELSEWHERE.get(path)
    if found:
        return found
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("experiments/claims/") and (page := claim_uri(path)):
        return page
    if path.startswith("jaxrl/") and path.endswith(".py"):
        return reference_uri(path)
    text = (ROOT / path).suffix in (".py", ".yaml", ".toml", "") and (ROOT / path).is_file()
    small = text and (ROOT / path).stat().st_size < LARGEST
    return f"files/{path}.md" if small else f"files/{path}"


def relink(text: str, uri: str) -> str:
    """The page `uri` with every link as the site has it."""

    def link(found: re.Match) -> str:
        name, given, anchor = found[1] or "", found[2] or found[4], found[3] or ""
        path = target(given, uri)
        if not path:
            return found[0]
        there = site_uri(path)
        if name.startswith("agents."):
            there, anchor = f"algorithms/{name.removeprefix('agents.')}.md", ""
        elif path.startswith("jaxrl/") and path.endswith(".py"):
            last = name.rpartition(".")[2]
            defines = re.search(rf"^(def|class) {last}\b", (ROOT / path).read_text(), re.MULTILINE)
            anchor = f"#{dotted_name(path)}.{last}" if last and defines else f"#{dotted_name(path)}"
        there = posixpath.relpath(there, posixpath.dirname(uri) or ".")
        return found[0].replace(given + (found[3] or ""), there + anchor)

    shown = (x if i % 2 else LINK.sub(link, x) for i, x in enumerate(parts(text)))
    return "".join(shown)


def index(text: str) -> str:
    """An index of functions by files, each function with a link to its file."""
    path, lines = "", []
    for line in text.splitlines():
        if heading := re.match(r"#+ \[\w+\]\((\S+\.py)\)", line):
            path = heading[1]
        lines.append(re.sub(r"^\| `(\w+)` \|", rf"| [`\1`]({path}) |", line) if path else line)
    return "\n".join(lines)


def parts(text: str) -> list[str]:
    """Text, fenced code, text, ... in turn."""
    return re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)


# ------------------------------------------------------------------------------- reference


def modules() -> list[str]:
    """Every file in a room of the package that holds something, by path."""
    found = (p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "jaxrl").glob("*/**/*.py")))
    return [path for path in found if not path.endswith("__init__.py")]


def dotted_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def reference_uri(path: str) -> str:
    """The page on which a module is described: of its folder, where a room has folders."""
    _, room, *rest = path.removesuffix(".py").removesuffix("/__init__").split("/")
    if room in BY_FOLDER:
        rest = rest[:1]
    if rest == ["index"]:  # a module of that name, beside the page of the room
        rest = ["index_"]
    return f"reference/{'/'.join([room, *rest] if rest else [room, 'index'])}.md"


def rooms() -> dict[str, dict[str, list[str]]]:
    """Room -> page -> the modules on it."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in modules():
        room = path.split("/")[1]
        found.setdefault(room, {}).setdefault(reference_uri(path), []).append(path)
    return found


def reference_nav() -> list[dict[str, list[str]]]:
    return [{room: [f"reference/{room}/index.md", *pages]} for room, pages in rooms().items()]


def reference_pages() -> dict[str, str]:
    """Page -> Markdown, from which mkdocstrings draws the names with their docstrings."""
    written, overview = {}, []
    for room, pages in rooms().items():
        text = module_docstring(ROOT / "jaxrl" / room / "__init__.py")
        overview.append(f"- [jaxrl.{room}]({room}/index.md): {first_line(text)}")
        rows = []
        for uri, paths in pages.items():
            plain = uri.removeprefix("reference/").removesuffix(".md").removesuffix("_")
            name, place = f"jaxrl.{plain.replace('/', '.')}", ROOT / "jaxrl" / plain
            source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            said = module_docstring(source)
            rows.append(f"- [{name}]({posixpath.basename(uri)}): {first_line(said)}")
            intro = [as_markdown(said)] if place.is_dir() else []
            drawn = (f"::: {dotted_name(path)}" for path in paths)
            written[uri] = "\n\n".join([f"# {name}", *intro, *drawn])
        parts = [f"# jaxrl.{room}", as_markdown(text), "\n".join(rows)]
        written[f"reference/{room}/index.md"] = "\n\n".join(parts)
    short = as_markdown(module_docstring(ROOT / "jaxrl" / "__init__.py"))
    head = ["# Reference", "Every public name, from its docstring.", "## import jaxrl", short]
    text = "\n\n".join([*head, "## Rooms", "\n".join(overview)])
    return {"reference/index.md": text} | written


def module_docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


class AsMarkdown(griffe.Extension):
    """Docstrings of this package as Markdown."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


# ------------------------------------------------------------------------------- claims


@functools.cache
def claims() -> Mapping[str, str]:
    """Return the pages and pictures of claims that only the site has, by their place there."""
    files = {claim.id: claim for claim in listing.discover(ROOT).values()}
    made = {}
    for path, text in claim_pages.site(run.gather(files.values())).items():
        uri = path.removeprefix("docs/")
        if claim := files.get(Path(uri).stem) if uri.endswith(".md") else None:
            text += declaration(claim.path)
        made[uri] = text
    return made


def declaration(path: Path) -> str:
    """Return a claim's file, folded: a link to it leads to the claim's page."""
    name = path.relative_to(ROOT).as_posix()
    head = f"\n<details data-search-exclude markdown><summary>{name}</summary>\n\n"
    return f"{head}{fence(path.read_text(), 'python')}\n\n</details>\n"


def claim_uri(path: str) -> str:
    """Return the page of a claim or of a family of claims by its file or folder; "" for others."""
    _, _, family, *names = path.removesuffix(".py").split("/")
    if family not in NAMES or len(names) > 1 or not path.endswith((".py", family)):
        return ""
    return f"claims/{names[0].replace('_', '-') if names else family}.md"


def claim_families() -> list[str]:
    """Return the pages of families that have claims, in their order."""
    return [uri for name in NAMES if (uri := f"claims/{name}.md") in claims()]


# ------------------------------------------------------------------------------- speed


def speed() -> str:
    """Every record of speed, the newest first: of which version, on what, and how fast."""
    found = {
        path: benchmark(json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json"))
    }
    timed = {path: x for path, x in found.items() if isinstance(x, dict) and rates(x)}
    sections = [
        "# Records of speed",
        "Environment steps per second, median [lowest, highest] over rounds, of each version that "
        "was measured. `python experiments/bench/ppo.py` and `envs.py` beside it measure anew; "
        "how, and what the variants are, says [the page on measuring](measuring.md).",
    ]
    for path, record in sorted(timed.items(), key=lambda x: x[1]["date"], reverse=True):
        result = record["records"][0]["result"]
        at = result["versions"]
        machine = f"{at['cpus']} cores of {at['cpu']} ({at['platform']})" if "cpu" in at else (
            result["device"]
        )  # fmt: skip
        name = path.relative_to(ROOT).as_posix()
        rows = ["| what | side by side | seeds | variant | steps/s |", "|---|---|---|---|---|"]
        for key, values in rates(record).items():
            rows.append(f"| {' | '.join(map(str, key))} | {spread(values)} |")
        sections += [
            f"## {path.stem}, {record['date'][:10]}",
            f"{record['benchmark']}: commit `{record['commit'][:12]}`, jax {at['jax']}, {machine}. "
            f"All of it: [{name}](../../{name}).",
            "\n".join(rows),
        ]
    return "\n\n".join(sections)


def benchmark(record: Any) -> Any:
    """Return the record of a benchmark, which that of an accelerator holds as one of its parts."""
    if isinstance(record, dict) and "parts" in record:
        return record["parts"]["benchmark"]["result"]
    return record


def rates(record: Mapping[str, Any]) -> dict[tuple, list[float]]:
    """(what, how many side by side, seeds, variant) -> steps per second, one for each round."""
    found: dict[tuple, list[float]] = {}
    for x in record["records"]:
        result = x.get("result", {})  # none in a record of something else than speed
        rate = result.get("median_steps_per_s", result.get("steps_per_s"))
        if isinstance(rate, float):
            known = record.get("algorithms") or record.get("configs") or {}
            algorithm = known[x["algorithm"]] if "algorithm" in x else {}
            what = x.get("algorithm", x.get("pair", x.get("task", x.get("axis"))))
            size = algorithm.get("num_envs", x.get("envs", x.get("copies", x.get("size"))))
            key = what, f"{size:,}", x.get("seeds", 1), x["variant"]
            found.setdefault(key, []).append(rate)
    return found


def spread(values: list[float]) -> str:
    middle, low, high = (f"{x:,.0f}" for x in (statistics.median(values), min(values), max(values)))
    return f"{middle} [{low}, {high}]" if len(values) > 1 else middle
