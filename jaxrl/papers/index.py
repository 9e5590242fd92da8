"""Papers by id, and the parts of jaxrl that implement them.

A part belongs to a paper if its docstring cites the paper by title or arXiv number: the docstring
of an algorithm's module, of an environment, or the "Source:" of a function. `index.yaml` adds what
no citation tells (`here`) and names the parts that cite a paper without implementing any of it
(`only_cites`). Files are parsed, not imported.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from jaxrl.envs.registry import BUILT_IN as ENVIRONMENTS
from jaxrl.systems import registry

PACKAGE = Path(__file__).resolve().parents[1]
FAMILIES = (
    *("policy_gradient", "value", "continuous_control", "exploration", "offline", "imitation"),
    *("goals", "planning", "diffusion", "multi_agent", "games", "preferences", "tokens"),
    *("language", "lifelong", "meta", "evolution", "evaluation"),
)
FLAT = ("losses", "gradients", "solvers", "diffusion")  # rooms whose functions are `room.name`
UNREAD = ("commands", "core", "papers", "reporting", "runtime", "sweeps")  # implement no paper

CITED = re.compile(r'\b\d{4}[a-z]?\)?, "([^"]+)"')
ARXIV = re.compile(r"\barXiv:? ?(\d{4}\.\d{4,5})\b")


@dataclasses.dataclass(frozen=True)
class Paper:
    """An entry of the index.

    id: short name; also the id of its claim, if it has one.
    also: other titles that it is cited by; one may hold a further arXiv number.
    tier: "A" (core), "B" (at a reduced scale) or "C" (an idea or diagnostic to absorb); "" if its
        algorithm is here without being on the list of papers to cover (`class` in the file).
    year, arxiv: None and "" if unknown.
    here: names of parts that implement it, besides those whose docstrings cite it.
    only_cites: names of parts that cite it and implement none of it.
    claims: ids of further claims.
    """

    id: str
    family: str
    title: str
    also: tuple[str, ...] = ()
    tier: str = ""
    year: int | None = None
    arxiv: str = ""
    here: tuple[str, ...] = ()
    only_cites: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Part:
    """Something that can implement a paper.

    name: as a user writes it after `jaxrl.`, such as "losses.dpo", "algorithms.sac", or
        "envs.cartpole"; a module for what is documented as a whole, such as "evaluation.lifelong".
    path: its file, from the root of the repository.
    """

    name: str
    path: str

    @property
    def room(self) -> str:
        return self.name.partition(".")[0]


@functools.cache
def papers() -> Mapping[str, Paper]:
    """Return every paper by its id, in the order of the file."""
    found: dict[str, Paper] = {}
    entries = yaml.load((PACKAGE / "papers" / "index.yaml").read_bytes(), yaml.CSafeLoader)
    for family, members in entries.items():
        for id, fields in members.items():
            fields = {key: tuple(x) if isinstance(x, list) else x for key, x in fields.items()}
            found[id] = Paper(id, family, tier=fields.pop("class", ""), **fields)
    return found


@functools.cache
def implementations() -> Mapping[str, tuple[Part, ...]]:
    """Return the parts that implement each paper, sorted by name; only papers that have any."""
    known = {part.name: part for part, _ in parts()}
    found: dict[str, dict[str, Part]] = {}
    for part, text in parts():
        for id in cited(text):
            if part.name not in papers()[id].only_cites:
                found.setdefault(id, {})[part.name] = part
    for paper in papers().values():
        for name in paper.here:
            found.setdefault(paper.id, {})[name] = known[name]
    return {id: tuple(found[id][name] for name in sorted(found[id])) for id in papers() if id in found}


def cited(text: str) -> set[str]:
    """Return the ids of the papers that a docstring cites: a title, or the part of it before a
    colon, in quotes after a year, or an arXiv number."""
    text = " ".join(text.split())
    keys = [_plain(title) for title in CITED.findall(text)] + ARXIV.findall(text)
    return {id for key in keys if (id := _keys().get(key))}


@functools.cache
def parts() -> tuple[tuple[Part, str], ...]:
    """Return every part with the text in which it cites its sources."""
    return (*_algorithms(), *_environments(), *_others())


def _algorithms() -> Iterator[tuple[Part, str]]:
    for name, target in registry.built_in().items():
        path = _path(target.partition(":")[0])
        yield Part(f"algorithms.{name}", path), _module_docstring(path)


def _environments() -> Iterator[tuple[Part, str]]:
    for name, target in ENVIRONMENTS.items():
        module, _, function = target.partition(":")
        path = _path(module)
        yield Part(f"envs.{name}", path), _module_docstring(path) + _docstrings(path)[function]


def _others() -> Iterator[tuple[Part, str]]:
    """Public functions and classes of the other files, and their modules."""
    listed = {part.path for part, _ in (*_algorithms(), *_environments())}
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE.parent).as_posix()
        _, room, *rest = path.removesuffix(".py").split("/")
        if path in listed or room in UNREAD or not rest or rest[-1] == "__init__":
            continue
        module = ".".join([room, *rest])
        if room not in FLAT:
            yield Part(module, path), _module_docstring(path)
        for name, text in _docstrings(path).items():
            if not name.startswith("_"):
                yield Part(f"{room if room in FLAT else module}.{name}", path), _source(text)


@functools.cache
def _keys() -> Mapping[str, str]:
    """Title without case and punctuation, or arXiv number -> id. The part of a title before a colon
    counts where it is that of one paper alone."""
    found: dict[str, str] = {}
    short: dict[str, set[str]] = {}
    for paper in papers().values():
        for title in (paper.title, *paper.also):
            found[_plain(ARXIV.sub("", title))] = paper.id
            short.setdefault(_plain(title.partition(":")[0]), set()).add(paper.id)
            found |= {number: paper.id for number in ARXIV.findall(title)}
        if paper.arxiv:
            found[paper.arxiv] = paper.id
    return {key: ids.pop() for key, ids in short.items() if len(ids) == 1} | found


def _plain(title: str) -> str:
    return re.sub(r"[^a-z0-9]", "", title.lower())


def _source(text: str) -> str:
    """What follows "Source:", or else the whole docstring."""
    return text.partition("Source:")[2] or text


def _path(module: str) -> str:
    return module.replace(".", "/") + ".py"


@functools.cache
def _tree(path: str) -> ast.Module:
    return ast.parse((PACKAGE.parent / path).read_text(encoding="utf-8"))


def _module_docstring(path: str) -> str:
    return ast.get_docstring(_tree(path)) or ""


def _docstrings(path: str) -> dict[str, str]:
    """Docstring of every function and class of a file."""
    kinds = ast.FunctionDef | ast.ClassDef
    nodes = [node for node in _tree(path).body if isinstance(node, kinds)]
    return {node.name: ast.get_docstring(node) or "" for node in nodes}
