"""Digests: a hash of what a claim says and computes, apart from other words about it.

Seeds follow from digests. This module also says what changed between two declarations.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CLAIM = "CLAIM"  # the constant of a file that declares a claim
# Fields that only tell a reader something; their words may be improved at any time. The claim's
# sentence is not among them: whoever changes it claims something else.
PROSE = {
    "paper",
    "left_out",
    "meaning",
    "notes",
    "diagnosis",
    "shared",
    "deviates",
    "margin_reason",
}
PROSE |= {"parts", "minutes"}
NOT_COMPUTED = PROSE | {"mutations"}  # in a run that is recorded
Read = Callable[[Path], str]


def read_text(path: Path) -> str:
    """Return the text of a file of the working tree."""
    return path.read_text(encoding="utf-8")


class _Strip(ast.NodeTransformer):
    """Remove docstrings, and the fields of declarations that compute nothing."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("Paper", "Mutation"):
            return ast.Constant(None)
        if name in ("Claim", "Exact", "Side", "Clause", "Metric", "better", "not_worse", "equal"):
            node.keywords = [word for word in node.keywords if word.arg not in NOT_COMPUTED]
            if name == "Side":
                node.args = node.args[:3]  # the fourth is how it deviates
        return self.generic_visit(node)


def _statements(text: str) -> list[ast.stmt]:
    """Return the top-level statements of a file, without prose."""
    return _Strip().visit(ast.parse(text)).body


def uses(statements: Sequence[ast.stmt], roots: Iterable[str]) -> list[ast.stmt]:
    """Return the statements that the names `roots` are computed from, without imports.

    A statement that binds no name (an assertion, a loop) may act by itself and is among them.
    """

    def binds(node: ast.stmt) -> set[str] | None:
        """Return the names that a statement binds; None if it may do anything else."""
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return {node.name}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return {part.id for x in targets for part in ast.walk(x) if isinstance(part, ast.Name)}
        return None

    statements = [node for node in statements if not is_import(node)]
    wanted, kept = set(roots), []
    while True:
        found = [node for node in statements if (names := binds(node)) is None or names & wanted]
        if len(found) == len(kept):
            return found
        kept = found
        wanted |= _names(kept)


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    parts = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def sources(path: Path, read: Read = read_text, root: str = CLAIM) -> dict[str, str]:
    """Return the code that the claim in `path` is computed from, by module.

    The first module is the claim's own; the others are the `_*.py` that it imports, from its folder
    or from one beside that, by their names (with their folder if it is another one). Only what
    is used of them counts, and neither imports nor docstrings nor `PROSE`. `read` returns the text
    of a file or raises `FileNotFoundError`.
    """
    modules: dict[tuple[str, str], list[ast.stmt] | None] = {}
    wanted: dict[tuple[str, str], set[str]] = {}

    def load(folder: str, name: str) -> list[ast.stmt] | None:
        """Return the statements of a module; None for a private module of something else."""
        if (folder, name) not in modules:
            try:
                text = read(path.parents[1] / folder / f"{name}.py")
            except FileNotFoundError:
                if (folder, name) == own:
                    raise
                modules[folder, name] = None
            else:
                modules[folder, name] = _statements(text)
        return modules[folder, name]

    def add(folder: str, name: str, roots: set[str]) -> None:
        """Add what `roots` need from a module, and what that needs from others."""
        statements = load(folder, name)
        if statements is None or roots <= wanted.get((folder, name), set()):
            return
        roots = wanted[folder, name] = wanted.get((folder, name), set()) | roots
        used = uses(statements, roots)
        names = _names(used) | roots
        for node in statements:
            if not isinstance(node, ast.ImportFrom):
                continue
            package = (node.module or "").split(".")
            for alias in node.names:
                bound = alias.asname or alias.name
                if bound not in names:
                    continue
                if package[-1].startswith("_"):  # from ..._helper import name
                    beside = package[-2] if len(package) > 1 else folder
                    add(beside, package[-1], {alias.name})
                elif alias.name.startswith("_"):  # from ... import _helper
                    attributes = {
                        part.attr
                        for x in used
                        for part in ast.walk(x)
                        if isinstance(part, ast.Attribute)
                        and isinstance(part.value, ast.Name)
                        and part.value.id == bound
                    }
                    add(package[-1] or folder, alias.name, attributes)

    own = path.parent.name, path.stem
    add(*own, {root})
    label = lambda folder, name: name if folder == own[0] else f"{folder}/{name}"
    return {
        label(*where): "\n".join(map(ast.unparse, uses(modules[where] or [], roots)))
        for where, roots in wanted.items()
    }


def digest(path: Path, read: Read = read_text, root: str = CLAIM) -> str:
    """Return 12 hex digits for what the claim in `path` says and computes.

    They change with its sentence, settings, environments and clauses, and with the code of its
    measuring function and of the helpers which that calls. They do not change with prose (`PROSE`
    and the paper), imports, comments, formatting, mutations, and code that the claim does not use.
    """
    texts = sources(path, read, root)
    own = texts.pop(path.stem)
    return short_hash(own, *(f"{name}\n{texts[name]}" for name in sorted(texts)))


def short_hash(*texts: str) -> str:
    """Return 12 hex digits for some texts in order."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def seed_roots(id: str, digest: str, attempt: int) -> tuple[int, int]:
    """Return the two numbers from which the seeds of tuning and the reported seeds are split.

    Seeds of tuning depend on the id alone. A revised declaration and another attempt have new
    reported seeds.
    """
    told = f"tuning {id}", f"reported {id} {digest} {attempt}"
    tuning, reported = (int(short_hash(text)[:8], 16) >> 1 for text in told)
    return tuning, reported


# ------------------------------------------------------------------------------- declarations


def as_json(value: Any) -> Any:
    """Return a declaration as JSON.

    Dataclasses and mappings become objects, functions and algorithms their own names, NumPy's
    numbers Python's, and numbers that are not finite null.
    """
    if isinstance(value, str | bool | int | None):
        return value
    if hasattr(value, "tolist"):  # NumPy and JAX
        return as_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): as_json(x) for name, x in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(x) for x in (sorted(value) if isinstance(value, set) else value)]
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    if callable(value) and hasattr(value, "name"):
        return value.name
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: as_json(getattr(value, name)) for name in names}
    if callable(value):
        return type(value).__qualname__
    return f"{type(value).__module__}:{type(value).__qualname__}"


def revisions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two declarations that have different digests, in sentences.

    Both are as `as_json` gives them. A side or a clause that came or went is not described further.
    """
    sentences = list(_differences(before, now, ""))
    return sentences or ["No setting changed, but the code that computes the result did."]


def data_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two declarations apart from names of code and how it measures."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(x) for name, x in value.items() if name != "measure"}
        if isinstance(value, list):
            return [plain(x) for x in value]
        is_code = isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.<>]+", value)
        return "code" if is_code else value

    return list(_differences(plain(before), plain(now), ""))


def _differences(before: Any, now: Any, name: str) -> Iterator[str]:
    old, new = _by_name(before), _by_name(now)
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if old != new:
            yield f"{name} was {json.dumps(before)} and is {json.dumps(now)}."
        return
    for key in {**old, **new}:
        where = f"{name}, {key}" if name else key
        if key in NOT_COMPUTED:
            continue
        if key in old and key in new:
            yield from _differences(old[key], new[key], where)
        elif value := old.get(key, new.get(key)):  # a field that is new and not used says nothing
            shown = "" if isinstance(_by_name(value), Mapping) else f" ({json.dumps(value)})"
            yield f"{where}{shown} is {'gone' if key in old else 'new'}."


def _by_name(value: Any) -> Any:
    """Return a list of mappings as a mapping by their labels; anything else as it is."""
    if not (isinstance(value, list) and value and all(isinstance(x, dict) for x in value)):
        return value
    labels = [
        x.get("name") or x.get("env") or f"{x.get('one')} {x.get('kind')} than {x.get('other')}"
        for x in value
    ]
    return {
        label if labels.count(label) == 1 else f"{label} ({i})": x
        for i, (label, x) in enumerate(zip(labels, value, strict=True), 1)
    }
