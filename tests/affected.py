"""Files that a change can affect, by a static graph of imports.

A file depends on the files that define the names it uses: `from jaxrl import losses` followed by
`losses.gae(...)` depends on the file of `gae`, not on all losses. Nothing is imported to find out.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
from collections.abc import Container, Iterable, Mapping
from typing import Any

ROOTS = ("jaxrl", "experiments", "tests")
# Names that stand for others, and files that hold names of everything without using it.
STANDS_FOR = {
    f"tests.losses.compiled.{room}": f"jaxrl.{room}"
    for room in ("losses", "diffusion", "gradients", "solvers")
}
HANDS_ON = ("tests/losses/compiled.py", "tests/losses/contract.py", "tests/rota.py")
# Folders whose files name algorithms and environments by strings.
SPEAKING = ("experiments/", "tests/")
# A change of these can affect every test.
FUNDAMENTAL = ("pyproject.toml", "tests/conftest.py")

NAME = re.compile(r"[\w-]{2,60}(?:\.\w{2,5})?")
FORMAT = 3  # of the cache


# ------------------------------------------------------------------------------- one file's names


@dataclasses.dataclass
class Facts:
    """Names that a file defines, imports and uses.

    uses: top-level definition ("" for bare statements) -> dotted names it uses; names of the file
        itself begin with a dot.
    binds: name -> dotted name that an import binds it to.
    typing: the same below `if TYPE_CHECKING`, which creates no dependency.
    stars: modules from which all names are imported.
    lazy: string -> `module:attribute` that a top-level dictionary maps it to.
    strings: definition -> string constants that may be names of something.
    """

    uses: dict[str, list[str]]
    binds: dict[str, str]
    typing: dict[str, str]
    stars: list[str]
    lazy: dict[str, str]
    strings: dict[str, list[str]]


def facts(text: str) -> Facts:
    """Read the names that a file defines, imports and uses."""
    tree = ast.parse(text)
    binds: dict[str, str] = {}
    typing: dict[str, str] = {}
    stars: list[str] = []
    plain: set[str] = set()
    unseen = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        bound = typing if node in unseen else binds
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (top := alias.name.split(".")[0]) in ROOTS:
                    bound[alias.asname or top] = alias.name if alias.asname else top
                    plain |= set() if node in unseen else {alias.name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOTS:
            for alias in node.names:
                if alias.name == "*":
                    stars.append(str(node.module))
                else:
                    bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    uses: dict[str, list[str]] = {"": []}
    lazy: dict[str, str] = {}
    strings: dict[str, list[str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        names = _names(statement) or [""]
        used, said = _read(statement, binds)
        for name in names:
            uses.setdefault(name, []).extend(sorted(used))
            strings.setdefault(name, []).extend(sorted(said))
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Dict):
            lazy |= _lazy(value)
    # `import a.b` depends on a.b, used by its full name or not at all.
    uses[""] += sorted(name for name in plain if "." in name)
    return Facts(uses, binds, typing, stars, lazy, strings)


def _names(statement: ast.stmt) -> list[str]:
    """Return the names that a top-level statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return [n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)]


def _read(statement: ast.stmt, binds: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Return the dotted names that a statement uses, and its string constants."""
    used: set[str] = set()
    said: set[str] = set()

    def visit(node: ast.AST, local: frozenset[str]) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            last = node.value.rpartition("/")[2]
            if NAME.fullmatch(last):
                said.add(last)
        elif isinstance(node, ast.Attribute | ast.Name):
            chain = []
            while isinstance(node, ast.Attribute):
                chain.append(node.attr)
                node = node.value
            if isinstance(node, ast.Name):
                if node.id not in local:
                    used.add(".".join([binds.get(node.id, f".{node.id}"), *reversed(chain)]))
            else:
                visit(node, local)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            within = local | _local_names(node)
            for name, value in ast.iter_fields(node):
                for inner in value if isinstance(value, list) else [value]:
                    if isinstance(inner, ast.AST):
                        visit(inner, within if name == "body" else local)
        elif not isinstance(node, ast.ImportFrom | ast.Import):
            for inner in ast.iter_child_nodes(node):
                visit(inner, local)

    visit(statement, frozenset())
    return used, said


def _local_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> frozenset[str]:
    """Return the parameters of a function and the names it assigns, which hide those outside."""
    body = function.body if isinstance(function.body, list) else [function.body]
    found = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            waiting.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def _lazy(value: ast.Dict) -> dict[str, str]:
    constants = [
        (k.value, v.value)
        for k, v in zip(value.keys, value.values, strict=True)
        if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)
    ]
    return {k: v for k, v in constants if isinstance(v, str) and re.fullmatch(r"[\w.]+:\w+", v)}


# ------------------------------------------------------------------------------------- all files


class Graph:
    """Dependencies between the Python files below `root`.

    cache: a JSON file that keeps what unchanged files say; None keeps nothing.
    """

    def __init__(self, root: pathlib.Path, cache: pathlib.Path | None = None) -> None:
        self.root = root
        found = [p for folder in ROOTS for p in sorted((root / folder).rglob("*.py"))]
        self.files = [p.relative_to(root).as_posix() for p in found]
        self.modules = {_module(file): file for file in self.files}
        self.facts = _all_facts(root, self.files, cache)

    @functools.cached_property
    def environments(self) -> dict[str, str]:
        """Name -> file of every registered environment."""
        return self._registry("jaxrl/envs/registry.py")

    @functools.cached_property
    def algorithms(self) -> dict[str, str]:
        """Name -> file, of every file that lies directly in a family."""
        found = [f.split("/") for f in self.files if f.startswith("jaxrl/algorithms/")]
        return {
            parts[3].removesuffix(".py"): "/".join(parts)
            for parts in found
            if len(parts) == 4 and parts[3] != "__init__.py"
        }

    def tiny(self, file: str) -> frozenset[str]:
        """Return the files of the environments that the TINY settings of an algorithm name, also
        through constants from which they are built."""
        waiting, seen = {(file, "TINY")}, set()
        while waiting:
            found = waiting.pop()
            if found not in seen and found[1].isupper():
                seen.add(found)
                waiting |= self._used_by(*found)
        said = {x for file, name in seen for x in self.facts[file].strings.get(name, ())}
        return frozenset(self.environments[name] for name in said & set(self.environments))

    def _registry(self, registry: str) -> dict[str, str]:
        if registry not in self.facts:
            return {}
        at = {
            n: self.modules.get(x.partition(":")[0]) for n, x in self.facts[registry].lazy.items()
        }
        return {name: file for name, file in at.items() if file}

    @functools.cached_property
    def imports(self) -> dict[str, frozenset[str]]:
        """File -> files it depends on directly."""
        return {file: frozenset(self._direct(file)) for file in self.files}

    def _direct(self, file: str) -> set[str]:
        said = self.facts[file]
        found: set[str] = set()
        for name, uses in said.uses.items():
            for dotted in uses:
                if not dotted.startswith("."):
                    found |= {f for f, _ in self.resolve(dotted, whole=file not in HANDS_ON)}
            if file.startswith(SPEAKING) and file not in HANDS_ON:
                for string in said.strings.get(name, ()):
                    tables = (self.environments, self.algorithms)
                    found |= {table[string] for table in tables if string in table}
        if not file.endswith("__init__.py"):  # a package only re-exports what it imports
            for dotted in said.binds.values():
                found |= {f for f, _ in self.resolve(dotted, whole=False)}
            for module in said.stars:
                found |= {self.modules[module]} & set(self.files)
        for parent in _folder_files(file):
            if parent in self.facts and parent not in FUNDAMENTAL:
                found.add(parent)
        return found - {file}

    def resolve(self, dotted: str, whole: bool = True) -> set[tuple[str, str]]:
        """Return the files, and definitions in them ("" for all), that a dotted name stands for.

        whole: whether a package that is used as a value stands for everything it re-exports.
        """
        for name, other in STANDS_FOR.items():
            if dotted == name or dotted.startswith(f"{name}."):
                own = self.modules.get(name.rpartition(".")[0])
                found = self._resolve(other + dotted[len(name) :], whole)
                return found | ({(own, "")} if own else set())
        return self._resolve(dotted, whole)

    @functools.cache  # noqa: B019
    def _resolve(self, dotted: str, whole: bool) -> set[tuple[str, str]]:
        parts = dotted.split(".")
        lengths = range(len(parts), 0, -1)
        length = next((n for n in lengths if ".".join(parts[:n]) in self.modules), 0)
        if not length:
            return set()
        module, rest = ".".join(parts[:length]), ".".join(parts[length:])
        file, name = self.modules[module], rest.partition(".")[0]
        if not name or name.startswith("__"):
            whole = whole and not name
            handed = self._handed_on(module) if whole and file.endswith("__init__.py") else set()
            return {(file, "")} | handed
        return self._definition(module, name, rest.partition(".")[2], whole) or (
            {(file, "")} | self._handed_on(module)
        )

    def _definition(self, module: str, name: str, rest: str, whole: bool) -> set[tuple[str, str]]:
        """Return the place where `name` of a module is defined, empty if that cannot be told."""
        file = self.modules[module]
        said = self.facts[file]
        further = f".{rest}" if rest else ""
        if name in said.binds:
            found = self.resolve(said.binds[name] + further, whole)
            return found if file.endswith("__init__.py") else found | {(file, "")}
        if name in said.uses:
            return {(file, name)}
        if name in said.lazy:
            return self.resolve(said.lazy[name].replace(":", ".") + further, whole)
        for star in said.stars:
            if star in self.modules and self._exports(star, name):
                return self._definition(star, name, rest, whole)
        if "__getattr__" in said.uses:  # by the name of a file somewhere below
            below = [m for m in self.modules if m.startswith(f"{module}.")]
            return {(self.modules[m], "") for m in below if m.endswith(f".{name}")}
        return set() if file.endswith("__init__.py") else {(file, "")}

    def _exports(self, module: str, name: str) -> bool:
        said = self.facts[self.modules[module]]
        if name in said.uses or name in said.binds:
            return True
        return any(self._exports(star, name) for star in said.stars if star in self.modules)

    def _handed_on(self, module: str) -> set[tuple[str, str]]:
        """Return everything that a package re-exports, packages below it included."""
        said = self.facts[self.modules[module]]
        found: set[tuple[str, str]] = set()
        for star in said.stars:
            found |= {(f, "") for f in self._below(star)}
        for dotted in said.binds.values():
            found |= self.resolve(dotted, whole=False)
        return found

    def _below(self, module: str) -> set[str]:
        if module not in self.modules:
            return set()
        file = self.modules[module]
        found = {file}
        if file.endswith("__init__.py"):
            found |= {f for f, _ in self._handed_on(module)}
        return found

    def closure(self, files: Iterable[str], without: Iterable[str] = ()) -> frozenset[str]:
        """Return these files and all that they depend on, except through those of `without`."""
        without = set(without)
        return _reachable(set(files) - without, self.imports, without)

    def dependents(self, files: Iterable[str]) -> frozenset[str]:
        """Return these files and all that depend on them."""
        return _reachable(files, self._imported_by)

    @functools.cached_property
    def _imported_by(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {file: set() for file in self.files}
        for file, others in self.imports.items():
            for other in others:
                found[other].add(file)
        return found

    def impact(self, changed: Iterable[str]) -> frozenset[str]:
        """Return the files that a change of `changed` can affect, all if one is fundamental.

        A file that is not Python affects those that mention its name.
        """
        changed = set(changed)
        if changed & set(FUNDAMENTAL):
            return frozenset(self.files)
        begin = {file for file in changed if file in self.facts}
        names = {file.rpartition("/")[2] for file in changed if file not in self.facts}
        for file, said in self.facts.items():
            if any(names & set(strings) for strings in said.strings.values()):
                begin.add(file)
        return self.dependents(begin)

    # --------------------------------------------------------------------------- definitions

    def definitions_used(self, files: Iterable[str], within: Iterable[str]) -> set[tuple[str, str]]:
        """Return the definitions in the files `within` that `files` use, directly or not."""
        within = set(within)
        waiting = {
            found
            for file in files
            for uses in self.facts[file].uses.values()
            for dotted in uses
            if not dotted.startswith(".")
            for found in self.resolve(dotted, whole=False)
        }
        seen: set[tuple[str, str]] = set()
        while waiting:
            file, name = found = waiting.pop()
            if found in seen or file not in within:
                continue
            seen.add(found)
            waiting |= self._used_by(file, name)
        return seen

    def _used_by(self, file: str, name: str) -> set[tuple[str, str]]:
        """Return the definitions that a definition uses, of its own file and of others."""
        said = self.facts[file]
        found: set[tuple[str, str]] = set()
        for dotted in said.uses.get(name, ()):
            if not dotted.startswith("."):
                found |= self.resolve(dotted, whole=False)
            elif (own := dotted.split(".")[1]) in said.uses:
                found.add((file, own))
        return found

    def used_by_tests(self, file: str) -> dict[str, set[tuple[str, str]]]:
        """Map each test function of a file to the definitions elsewhere that it uses, also through
        other definitions of the file."""
        result = {}
        for test in self.facts[file].uses:
            if not test.startswith("test"):
                continue
            waiting, seen = {(file, test)}, set()
            while waiting:
                found = waiting.pop()
                if found in seen:
                    continue
                seen.add(found)
                if found[0] == file:
                    waiting |= self._used_by(*found)
            result[test] = {found for found in seen if found[0] != file}
        return result


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _folder_files(file: str) -> list[str]:
    """Return files that the folders of a file bring with them: packages, fixtures of tests."""
    folders = file.split("/")[:-1]
    above = ["/".join(folders[: i + 1]) for i in range(len(folders))]
    fixtures = [f"{folder}/conftest.py" for folder in above if "/test_" in file]
    return [f"{folder}/__init__.py" for folder in above] + fixtures


def _reachable(
    begin: Iterable[str], edges: Mapping[str, Iterable[str]], without: Container[str] = ()
) -> frozenset[str]:
    waiting, seen = [*begin], set()
    while waiting:
        file = waiting.pop()
        if file not in seen and file not in without:
            seen.add(file)
            waiting.extend(edges[file])
    return frozenset(seen)


def _facts_or_none(text: str) -> Facts:
    """Read a file; one that cannot be parsed says nothing, and its import will report it."""
    try:
        return facts(text)
    except SyntaxError:
        return Facts({"": []}, {}, {}, [], {}, {})


def _all_facts(
    root: pathlib.Path, files: Iterable[str], cache: pathlib.Path | None
) -> dict[str, Facts]:
    kept: dict[str, Any] = {}
    if cache and cache.exists():
        try:
            kept = json.loads(cache.read_text())
        except ValueError:
            kept = {}
    result, stored, new = {}, {}, False
    for file in files:
        stat = (root / file).stat()
        stamp = [FORMAT, stat.st_mtime_ns, stat.st_size]
        entry = kept.get(file)
        if not entry or entry["stamp"] != stamp:
            text = (root / file).read_text(encoding="utf-8")
            entry = {"stamp": stamp, "facts": dataclasses.asdict(_facts_or_none(text))}
            new = True
        stored[file] = entry
        result[file] = Facts(**entry["facts"])
    if cache and new:
        beside = cache.with_name(f"{cache.name}.{os.getpid()}")
        beside.write_text(json.dumps(stored))
        beside.replace(cache)
    return result


# ------------------------------------------------------------------------------------- the change


def change(root: pathlib.Path, base: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the commit to compare with, and the files that differ from it, new ones included.

    base: the commit, if it is known. Otherwise it is the one where this branch left the default
        branch, or the last but one if no other branch is found. If git knows neither, the commit
        is "" and only uncommitted files count as changed.
    """
    head = _git(root, "rev-parse", "--verify", "HEAD")
    commit = _git(root, "rev-parse", "--verify", f"{base}^{{commit}}") if base else []
    if not commit:
        for name in ("origin/HEAD", "origin/main", "origin/master", "main", "master"):
            commit = commit or [c for c in _git(root, "merge-base", "HEAD", name) if c not in head]
        commit = commit or _git(root, "rev-parse", "--verify", "HEAD~1")
    known = commit or head
    if not known:
        return "", ()
    changed = _git(root, "diff", "--name-only", "--no-renames", known[0], "--")
    changed += _git(root, "ls-files", "--others", "--exclude-standard")
    return (commit[0] if commit else ""), tuple(sorted(set(changed)))


def _git(root: pathlib.Path, *arguments: str) -> list[str]:
    """Return the lines that git prints, none if it fails or is missing."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.splitlines()
