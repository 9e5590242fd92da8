"""What a check computes, told apart from what is said about it: its digest, the seeds that follow
from it, and what changed between two declarations."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# What a reader is told, which may be said better at any time.
PROSE = {"paper", "claim", "left_out", "notes", "diagnosis", "shared", "deviates"}
PROSE |= {"parts", "minutes"}
NOT_COMPUTED = PROSE | {"mutations"}  # in a run that is recorded
Read = Callable[[Path], str]


class _Strip(ast.NodeTransformer):
    """Drops docstrings, and of the declarations what computes nothing."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        said = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if said else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("Paper", "Mutation"):
            return ast.Constant(None)
        if name in ("Claim", "Exact", "Side"):
            node.keywords = [word for word in node.keywords if word.arg not in NOT_COMPUTED]
            node.args = node.args[:3]  # the fourth of a Side is how it deviates
        return self.generic_visit(node)


def _statements(text: str) -> list[ast.stmt]:
    """What is at the top of a file, without prose, each import one statement."""
    found: list[ast.stmt] = []
    for node in _Strip().visit(ast.parse(text)).body:
        if isinstance(node, ast.Import):
            found += [ast.Import([name]) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [ast.ImportFrom(node.module, [name], node.level) for name in node.names]
        else:
            found.append(node)
    return found


def _used(statements: Sequence[ast.stmt], root: str) -> list[ast.stmt]:
    """Those that `root` is computed from, and those that may do something by themselves."""

    def binds(node: ast.stmt) -> set[str] | None:
        """The names that are all that it does."""
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


def _text(statements: Iterable[ast.stmt]) -> str:
    """One text for however they are formatted, imports in one order."""
    lines = [(isinstance(s, ast.Import | ast.ImportFrom), ast.unparse(s)) for s in statements]
    return "\n".join(sorted(x for yes, x in lines if yes) + [x for yes, x in lines if not yes])


def digest(path: Path, read: Read = lambda path: path.read_text(encoding="utf-8")) -> str:
    """12 hex digits for what the check in `path` computes, with the `_*.py` that it imports, of its
    folder or of one beside that. They change with settings, environments, clauses and code; not
    with
    prose (`PROSE` and the paper), comments, formatting, mutations, and what the check does not use.
    `read` gives the text of a file, and raises `FileNotFoundError`."""
    texts: dict[str, str] = {}
    own = path.parent.name
    known = lambda name, folder: name if folder == own else f"{folder}/{name}"

    def add(name: str, folder: str = own, root: str = "") -> None:
        try:
            statements = _statements(read(path.parents[1] / folder / f"{name}.py"))
        except FileNotFoundError:
            if root:
                raise
            return  # a private name of some other module
        statements = _used(statements, root) if root else statements
        texts[known(name, folder)] = _text(statements)
        for node in (part for statement in statements for part in ast.walk(statement)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                package = getattr(node, "module", None) or ""
                for module in (package, *(f"{package}.{n.name}" for n in node.names)):
                    *outer, last = module.split(".")
                    beside = outer[-1] if outer and outer[-1] else folder
                    if last.startswith("_") and known(last, beside) not in texts:
                        add(last, beside)

    add(path.stem, root="CHECK")
    return hashed(texts.pop(path.stem), *(f"{name}\n{texts[name]}" for name in sorted(texts)))


def whole(path: Path) -> str:
    """The text of a file without comments, docstrings and formatting."""
    return _text(_statements(path.read_text(encoding="utf-8")))


def hashed(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def seed_roots(id: str, digest: str, attempt: int) -> tuple[int, int]:
    """The seeds that those of tuning and the reported ones are split from. Tuning goes by the id
    alone; a setting that changes, and another attempt, has new reported seeds."""
    told = f"tuning {id}", f"reported {id} {digest} {attempt}"
    tuning, reported = (int(hashed(text)[:8], 16) >> 1 for text in told)
    return tuning, reported


# ------------------------------------------------------------------------------- what is declared


def as_json(value: Any) -> Any:
    """A check as JSON: groups and mappings by the names of their entries, functions and systems by
    their own names, NumPy's numbers as Python's, what is not finite as null."""
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


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two declarations (as `as_json` gives them) that are not computed alike,
    a sentence each; of a side or a clause that came or went, that it did."""
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
    """A list of mappings as a mapping by what they are called; anything else as it is."""
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
