"""Digests: a hash of what a claim computes, apart from the words that describe it.

Seeds follow from digests. This module also says what changed between two declarations.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CLAIM = "CLAIM"  # the constant of a file that declares a claim
# Fields that only tell a reader something; their words may be improved at any time.
PROSE = {"paper", "claim", "left_out", "notes", "diagnosis", "shared", "deviates"}
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
        if name in ("Claim", "Exact", "Side"):
            node.keywords = [word for word in node.keywords if word.arg not in NOT_COMPUTED]
            node.args = node.args[:3]  # the fourth of a Side is how it deviates
        return self.generic_visit(node)


def _statements(text: str) -> list[ast.stmt]:
    """Return the top-level statements of a file without prose, one for each imported name."""
    found: list[ast.stmt] = []
    for node in _Strip().visit(ast.parse(text)).body:
        if isinstance(node, ast.Import):
            found += [ast.Import([name]) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [ast.ImportFrom(node.module, [name], node.level) for name in node.names]
        else:
            found.append(node)
    return found


def uses(statements: Sequence[ast.stmt], root: str) -> list[ast.stmt]:
    """Return the statements that `root` is computed from, and those that may act by themselves."""

    def binds(node: ast.stmt) -> set[str] | None:
        """Return the names that a statement binds; None if it may do anything else."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            return {(name.asname or name.name).partition(".")[0] for name in node.names}
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            return {node.name}
        calls = any(isinstance(part, ast.Call) for part in ast.walk(node))
        if isinstance(node, ast.Assign) and not calls and isinstance(node.targets[0], ast.Name):
            return {node.targets[0].id}
        return None

    wanted, kept = {root}, []
    while True:
        found = [node for node in statements if (names := binds(node)) is None or names & wanted]
        if len(found) == len(kept):
            return found
        kept = found
        parts = (part for node in kept for part in ast.walk(node))
        wanted |= {part.id for part in parts if isinstance(part, ast.Name)}


def is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _text(statements: Iterable[ast.stmt]) -> str:
    """Return one text for all ways to format the statements and to order imports."""
    lines = [(is_import(s), ast.unparse(s)) for s in statements]
    return "\n".join(sorted(x for yes, x in lines if yes) + [x for yes, x in lines if not yes])


def sources(path: Path, read: Read = read_text, root: str = CLAIM) -> dict[str, list[ast.stmt]]:
    """Return the statements that the claim in `path` is computed from, by module.

    The first module is the claim's own; the others are the `_*.py` that it imports, from its folder
    or from one beside that, by their names (with their folder if it is another one). Docstrings and
    `PROSE` are left out. `read` returns the text of a file or raises `FileNotFoundError`.
    """
    found: dict[str, list[ast.stmt]] = {}
    own = path.parent.name
    known = lambda name, folder: name if folder == own else f"{folder}/{name}"

    def add(name: str, folder: str = own, root: str = "") -> None:
        try:
            statements = _statements(read(path.parents[1] / folder / f"{name}.py"))
        except FileNotFoundError:
            if root:
                raise
            return  # a private name of some other module
        statements = uses(statements, root) if root else statements
        found[known(name, folder)] = statements
        for node in (part for statement in statements for part in ast.walk(statement)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                package = getattr(node, "module", None) or ""
                for module in (package, *(f"{package}.{n.name}" for n in node.names)):
                    *outer, last = module.split(".")
                    beside = outer[-1] if outer and outer[-1] else folder
                    if last.startswith("_") and known(last, beside) not in found:
                        add(last, beside)

    add(path.stem, root=root)
    return found


def digest(path: Path, read: Read = read_text, root: str = CLAIM) -> str:
    """Return 12 hex digits for what the claim in `path` computes, with the helpers it imports.

    They change with settings, environments, clauses and code. They do not change with prose
    (`PROSE` and the paper), comments, formatting, mutations, and code that the claim does not use.
    """
    texts = {name: _text(statements) for name, statements in sources(path, read, root).items()}
    own = texts.pop(path.stem)
    return short_hash(own, *(f"{name}\n{texts[name]}" for name in sorted(texts)))


def code(path: Path) -> str:
    """Return the text of a file without comments, docstrings and formatting."""
    return _text(_statements(read_text(path)))


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
    if callable(value):
        if hasattr(value, "__qualname__"):
            return f"{value.__module__}:{value.__qualname__}"
        return getattr(value, "name", type(value).__qualname__)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: as_json(getattr(value, name)) for name in names}
    return f"{type(value).__module__}:{type(value).__qualname__}"


def revisions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two declarations that have different digests, in sentences.

    Both are as `as_json` gives them. A side or a clause that came or went is not described further.
    """
    sentences = list(_differences(before, now, ""))
    return sentences or ["No setting changed, but the code that computes the result did."]


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
        else:
            value = old.get(key, new.get(key))
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
