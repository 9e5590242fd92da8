"""Papers by id, the parts of jaxrl that implement them, and what their claims came to.

A part belongs to a paper if its docstring cites the paper by title or arXiv number. The docstrings
read are those of algorithms' modules, of environments, and of public functions and classes (only
"Source:" where there is one). `index.yaml` adds what no citation tells and lists the parts that
cite a paper without implementing any of it. Files are parsed, not imported.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxrl.algorithms import registry
from jaxrl.envs.registry import BUILT_IN as ENVIRONMENTS

PACKAGE = Path(__file__).resolve().parents[1]
FLAT = ("losses", "gradients", "solvers", "diffusion")  # a function of a file is `room.function`
UNREAD = ("commands", "core", "papers", "reporting", "suites", "sweeps")

NUMBER = r"\d{4}\.\d{4,5}"
TITLE = re.compile(r'\b\d{4}\)?, "([^"]+)"')  # in quotes after the year
ARXIV = re.compile(rf"\barXiv:? ?({NUMBER})\b")


@dataclasses.dataclass(frozen=True)
class Paper:
    """An entry of the index.

    id: a short name, which its claim shares.
    tier: "A" (core), "B" (at a reduced scale) or "C" (an idea or diagnostic to absorb); "" for a
        paper on no list of papers to cover whose algorithm is here. The file calls it `class`.
    year, arxiv: None and "" if unknown.
    also: other titles and arXiv numbers by which docstrings cite it.
    here: names of parts that implement it and do not cite it.
    only_cites: names of parts that cite it and implement none of it.
    claims: ids of its claims besides one with its own id.
    no_claim: why none is tested here, if that will stay so; "" otherwise.
    """

    id: str
    family: str
    title: str
    tier: str = ""
    year: int | None = None
    arxiv: str = ""
    also: tuple[str, ...] = ()
    here: tuple[str, ...] = ()
    only_cites: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    no_claim: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
    """Something that implements a paper or a piece of it.

    name: its name without "jaxrl.": "algorithms.sac", "envs.cartpole", "losses.dpo",
        "networks.heads.SquashedHead", or a module such as "evaluation.lifelong".
    path: its file, from the root of the repository.
    """

    name: str
    path: str

    @property
    def is_algorithm(self) -> bool:
        """True for a complete algorithm, one of `jaxrl list algorithms`."""
        return self.name.removeprefix("algorithms.") in registry.built_in()


@functools.cache
def papers() -> Mapping[str, Paper]:
    """Return every paper by its id, in the order of the file."""
    text = (PACKAGE / "papers" / "index.yaml").read_text(encoding="utf-8")
    entries = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {
        id: _paper(id, family, fields)
        for family, members in entries.items()
        for id, fields in members.items()
    }


def _paper(id: str, family: str, fields: dict[str, Any]) -> Paper:
    values: dict[str, Any] = {"tier": fields.get("class", "")}
    values |= {k: tuple(x) if isinstance(x, list) else x for k, x in fields.items() if k != "class"}
    return Paper(id, family, **values)


@functools.cache
def implementations() -> Mapping[str, tuple[Part, ...]]:
    """Return the parts that implement each paper, algorithms first, then by name.

    Papers that nothing implements are left out.
    """
    found: dict[str, set[Part]] = {id: set() for id in papers()}
    for part, text in candidates():
        for id in citations(text):
            if part.name not in papers()[id].only_cites:
                found[id].add(part)
    known = {part.name: part for part, _ in candidates()}
    for paper in papers().values():
        found[paper.id] |= {known[name] for name in paper.here}
    ordered = {id: sorted(x, key=lambda p: (not p.is_algorithm, p.name)) for id, x in found.items()}
    return {id: tuple(x) for id, x in ordered.items() if x}


def citations(text: str) -> set[str]:
    """Return the ids of the papers that a docstring cites.

    A citation is an arXiv number, or a title in quotes after a year. The part of a title before its
    colon is enough where it begins no other title and, if it is one word, is the paper's id.
    """
    text = " ".join(text.split())
    keys = [_plain(title) for title in TITLE.findall(text)] + ARXIV.findall(text)
    return {id for key in keys if (id := _keys().get(key))}


def verdicts(paper: Paper) -> Mapping[str, str]:
    """Return the verdict of each claim of a paper by the claim's id; empty without a claim."""
    return {id: _verdicts()[id] for id in (paper.id, *paper.claims) if id in _verdicts()}


@functools.cache
def _verdicts() -> Mapping[str, str]:
    """Verdicts as `experiments/evidence/run.py --pages` last wrote them."""
    text = Path(registry.__file__).with_name("claims.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return {id: verdict for verdict, id, _ in rows}


@functools.cache
def candidates() -> tuple[tuple[Part, str], ...]:
    """Return every part that may implement a paper, with the text that cites its sources."""
    return (*_algorithms(), *_environments(), *_others())


def _algorithms() -> Iterator[tuple[Part, str]]:
    for name, target in registry.built_in().items():
        path = _path(target.partition(":")[0])
        yield Part(f"algorithms.{name}", path), _module_docstring(path)


def _environments() -> Iterator[tuple[Part, str]]:
    for name, target in ENVIRONMENTS.items():
        module, _, function = target.partition(":")
        path = _path(module)
        yield Part(f"envs.{name}", path), f"{_module_docstring(path)} {_docstrings(path)[function]}"


def _others() -> Iterator[tuple[Part, str]]:
    """Public functions and classes of the other files; of what algorithms share, whole modules."""
    taken = {part.path for part, _ in (*_algorithms(), *_environments())}
    for file in sorted(PACKAGE.glob("*/**/*.py")):
        path = file.relative_to(PACKAGE.parent).as_posix()
        module = path.removeprefix("jaxrl/").removesuffix(".py").replace("/", ".")
        room = module.partition(".")[0]
        if path in taken or room in UNREAD or file.stem == "__init__":
            continue
        if room not in FLAT:
            yield Part(module, path), _module_docstring(path)
        if room != "algorithms":
            for name, text in _docstrings(path).items():
                yield Part(f"{room if room in FLAT else module}.{name}", path), _source(text)


@functools.cache
def _keys() -> Mapping[str, str]:
    """Plain title, plain title up to its colon, or arXiv number -> id of the paper."""
    short: dict[str, set[str]] = {}
    full: dict[str, str] = {}
    for paper in papers().values():
        for title in (paper.title, *paper.also, *filter(None, [paper.arxiv])):
            full[title if re.fullmatch(NUMBER, title) else _plain(title)] = paper.id
            begin = title.partition(":")[0]
            if " " in begin or _plain(begin) == _plain(paper.id):
                short.setdefault(_plain(begin), set()).add(paper.id)
    return {key: next(iter(ids)) for key, ids in short.items() if len(ids) == 1} | full


def _plain(title: str) -> str:
    """A title without case, spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", title.lower())


def _source(docstring: str) -> str:
    """Return what follows "Source:", or the whole docstring; "" if the source is common usage."""
    source = (docstring.partition("Source:")[2] or docstring).strip()
    return "" if source.startswith("common usage") else source


def _path(module: str) -> str:
    return module.replace(".", "/") + ".py"


@functools.cache
def _tree(path: str) -> ast.Module:
    return ast.parse((PACKAGE.parent / path).read_text(encoding="utf-8"))


def _module_docstring(path: str) -> str:
    return ast.get_docstring(_tree(path)) or ""


def _docstrings(path: str) -> dict[str, str]:
    """Docstrings of a file's public functions and classes."""
    nodes = [node for node in _tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return {x.name: ast.get_docstring(x) or "" for x in nodes if not x.name.startswith("_")}
