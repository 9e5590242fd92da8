"""Renamings: a claim whose file has new names and computes what it computed before.

A claim's digest follows from its code without prose, so a renamed import changes it, and with it
seeds and freshness. A record of the event "renamed" says that the digests `from` and `to` are of
one computation. Wherever digests and programs are compared, the original one stands for all of
them (`original`, `original_programs`).

Only `run.py --renamed COMMIT` writes such a record, after it compared the checkout with COMMIT:

1. The declarations as data are equal but for names, and arenas and sides have the same labels.
2. The code is equal but for names (`compare`). Where it is not, it has no part in what is measured
   beside the algorithms, or a program has it, or it runs in a tiny trial too.
3. Both checkouts lower the claim to programs of the same dataflow; what NumPy computes has the same
   values.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evidence import digests
from jaxrl.core.errors import UserError

Record = Mapping[str, Any]
CONSTANTS = ("CHECK", digests.CLAIM)  # what declares a claim, in older files and in today's

# ------------------------------------------------------------------------------- what is recorded


def original(records: Iterable[Record], digest: str) -> str:
    """Return the digest that a claim had before it was renamed; `digest` itself if it never was.

    records: of one claim.
    """
    before = {r["to"]: r["from"] for r in records if r.get("event") == "renamed"}
    return before.get(digest, digest)


def original_programs(records: Iterable[Record], programs: Mapping[str, str]) -> dict[str, str]:
    """Return hashes of programs (name -> hash) as they were before the claim was renamed.

    records: of one claim, oldest first.
    """
    found = dict(programs)
    for record in reversed([r for r in records if r.get("event") == "renamed"]):
        for name, (old, new) in record["programs"].items():
            if found.get(name) == new:
                found[name] = old
    return found


def translate(
    value: Any, records: Sequence[Record], since: Record, until: Record | None = None
) -> Any:
    """Return data of the attempt `since` in the names that the claim had at the attempt `until`.

    value: JSON, such as a declaration or the settings that were tuned. records: of one claim,
    oldest first, the two among them. until: None: today.
    """
    end = records.index(until) if until else len(records)
    after = records[records.index(since) : end]
    # A later comparison with one and the same commit has all the names of an earlier one.
    names = {r["commit"]: r["names"] for r in after if r.get("event") == "renamed"}
    for one in names.values():
        value = _with_names(value, one)
    return value


def _with_names(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {names.get(key, key): _with_names(x, names) for key, x in value.items()}
    if isinstance(value, list):
        return [_with_names(x, names) for x in value]
    return names.get(value, value) if isinstance(value, str) else value


# ------------------------------------------------------------------------------- data


def data_names(before: Any, now: Any) -> dict[str, str]:
    """Return the names by which two declarations as data differ, old -> new.

    Both are as `digests.as_json` gives them, `before` of an older harness too. Prose is ignored.
    Raises `UserError` if anything else differs, if arenas or sides have other labels, or if one
    name became two, or two became one.
    """
    pairs: dict[tuple[str, str], None] = {}
    _pair(before, now, "", pairs)
    for label, now_label in _labels(before, now):
        if label != now_label:
            raise UserError(f"'{label}' became '{now_label}'; seeds and records depend on it.")
    names: dict[str, str] = {}
    for old, new in pairs:
        if names.setdefault(old, new) != new:
            raise UserError(f"'{old}' became both '{names[old]}' and '{new}'.")
    both = {new for old, new in names.items() if list(names.values()).count(new) > 1}
    if both:
        raise UserError(f"Two names became '{min(both)}'.")
    return {old: new for old, new in names.items() if old != new}


def _pair(old: Any, new: Any, where: str, pairs: dict[tuple[str, str], None]) -> None:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        old, new = (
            {k: v for k, v in x.items() if k not in digests.NOT_COMPUTED} for x in (old, new)
        )
        if len(old) == len(new):
            for (key, x), (new_key, y) in zip(old.items(), new.items(), strict=True):
                pairs[key, new_key] = None
                _pair(x, y, f"{where}, {new_key}".lstrip(", "), pairs)
            return
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for x, y in zip(old, new, strict=True):
            _pair(x, y, where, pairs)
        return
    elif isinstance(old, str) and isinstance(new, str):
        pairs[old, new] = None
        return
    elif type(old) is type(new) and old == new:
        return
    raise UserError(f"{where} was {json.dumps(old)} and is {json.dumps(new)}.")


def _labels(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pair the labels of arenas and of sides."""
    for old_key, key in (("worlds", "environments"), ("large", "large")):
        places = [x.get(old_key, x.get(key, [])) for x in (before, now)]
        labels = [[place["name"] or place["env"] for place in x] for x in places]
        yield from zip(*labels, strict=True)
    yield from zip(before.get("sides", {}), now.get("sides", {}), strict=True)


# ------------------------------------------------------------------------------- code


@dataclasses.dataclass(frozen=True)
class Difference:
    """A statement whose code is not equal but for names.

    binds: the name that it defines; empty if none. runs_tiny: what differs runs in tiny trials too.
    """

    module: str
    binds: str
    said: str
    runs_tiny: bool = False


def compare(
    before: Mapping[str, Sequence[ast.stmt]], now: Mapping[str, Sequence[ast.stmt]]
) -> list[Difference]:
    """Return the statements (`digests.sources`) that differ by more than names.

    Names may differ if, within a statement, each old variable is one new one and the other way
    round, in a module each old definition is one new one, and the attributes of an expression that
    had different names still do. Imports may differ in any way: what they import is what programs
    are compared for.
    """
    (own, *helpers), (new_own, *new_helpers) = before, now
    pairs = {"": (before[own], now[new_own])}
    known = {name.rpartition("/")[2]: name for name in helpers}  # whatever their folder
    same = {name: known.pop(last) for name in new_helpers
            if (last := name.rpartition("/")[2]) in known}  # fmt: skip
    others = [name for name in new_helpers if name not in same]
    if len(others) == len(known):
        same |= dict(zip(others, known.values(), strict=True))  # files with new names
    for name in new_helpers:
        pairs[name] = before.get(same.get(name, ""), ()), now[name]
    return [x for name, pair in pairs.items() for x in _compare(name, *pair)]


def _compare(module: str, before: Sequence[ast.stmt], now: Sequence[ast.stmt]) -> list[Difference]:
    old, new = ([copy.deepcopy(s) for s in x if not digests.is_import(s)] for x in (before, now))
    if len(old) != len(new):
        return [Difference(module, "", f"it has {len(old)} and {len(new)} statements")]
    found, defined = [], _OneToOne()
    for x, y in zip(old, new, strict=True):
        for pair in zip(_bindings(x), _bindings(y), strict=False):
            defined.define(*pair)
    for x, y in zip(old, new, strict=True):
        walk = _Walk(defined)
        try:
            walk.nodes(x, y)
        except _Differs as difference:
            binds = next(iter(_bindings(y)), "")
            found.append(Difference(module, binds, str(difference), _runs_tiny(x, y, defined)))
    return found


def _runs_tiny(old: ast.stmt, new: ast.stmt, defined: _OneToOne) -> bool:
    """Return whether two statements choose alike between tiny and other trials.

    Then whatever else differs also runs in a tiny trial.
    """

    def choices(statement: ast.stmt) -> list[ast.AST]:
        chosen = [x for x in ast.walk(statement) if isinstance(x, ast.IfExp | ast.If | ast.While)]
        tiny = lambda node: any(getattr(x, "attr", "") == "tiny" for x in ast.walk(node.test))
        return [node for node in chosen if tiny(node)]

    pairs = choices(old), choices(new)
    if len(pairs[0]) != len(pairs[1]):
        return False
    for x, y in zip(*pairs, strict=True):
        if not isinstance(x, ast.IfExp):  # what follows it may run in one of the two alone
            return False
        try:
            _Walk(defined).nodes(x, y)
        except _Differs:
            return False
    return True


def _bindings(statement: ast.stmt) -> list[str]:
    """Return the names that a top-level statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    nodes = ast.walk(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ()
    return [x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]


class _Differs(Exception):
    """Code that differs by more than names; says how."""


class _OneToOne:
    """Pairs of names, of which none has two partners."""

    def __init__(self):
        self.new: dict[str, str] = {}
        self.old: dict[str, str] = {}

    def define(self, old: str, new: str) -> None:
        """Add a pair, unless one of the two has a partner."""
        if old not in self.new and new not in self.old:
            self.new[old], self.old[new] = new, old

    def add(self, old: str, new: str) -> None:
        if self.new.setdefault(old, new) != new:
            raise _Differs(f"'{old}' is both '{self.new[old]}' and '{new}'")
        if self.old.setdefault(new, old) != old:
            raise _Differs(f"'{new}' was both '{self.old[new]}' and '{old}'")


VARIABLES = {
    ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name", ast.ClassDef: "name",
    ast.ExceptHandler: "name", ast.MatchAs: "name", ast.MatchStar: "name",
}  # fmt: skip


class _Walk:
    """Two statements, walked side by side. Raises `_Differs`.

    defined: names that the modules define, which must be the same ones here.
    """

    def __init__(self, defined: _OneToOne):
        self.variables = _OneToOne()
        self.variables.new, self.variables.old = dict(defined.new), dict(defined.old)
        self.attributes: dict[str, _OneToOne] = {}
        self.strings = _OneToOne()

    def nodes(self, old: Any, new: Any) -> None:
        if type(old) is not type(new):
            raise _Differs(f"'{_excerpt(old)}' is now '{_excerpt(new)}'")
        if isinstance(old, list):
            if len(old) != len(new):
                raise _Differs(f"'{_excerpt(old)}' is now '{_excerpt(new)}'")
            for x, y in zip(old, new, strict=True):
                self.nodes(x, y)
        elif isinstance(old, ast.AST):
            self._node(old, new)
        elif old != new:
            raise _Differs(f"'{_excerpt(old)}' is now '{_excerpt(new)}'")

    def _node(self, old: Any, new: Any) -> None:
        if isinstance(old, ast.ClassDef):
            self._fields(old, new)
        named = VARIABLES.get(type(old), "")
        for field in old._fields:
            x: Any = getattr(old, field, None)
            y: Any = getattr(new, field, None)
            if field == named and isinstance(x, str) and isinstance(y, str):
                self.variables.add(x, y)
            elif isinstance(old, ast.Attribute) and field == "attr":
                known = self.attributes.setdefault(ast.unparse(old.value), _OneToOne())
                known.add(x, y)
            elif isinstance(old, ast.keyword) and field == "arg" and x and y:
                pass  # of a call, which refuses a name that it does not have
            elif isinstance(old, ast.Constant) and isinstance(x, str) and isinstance(y, str):
                if field == "value":
                    self.strings.add(x, y)
            elif isinstance(old, ast.Global | ast.Nonlocal):
                for pair in zip(x, y, strict=True):
                    self.variables.add(*pair)
            else:
                self.nodes(x, y)

    def _fields(self, old: ast.ClassDef, new: ast.ClassDef) -> None:
        """Take the names of fields for attributes of the class, and no variables."""
        for x, y in zip(old.body, new.body, strict=False):
            if isinstance(x, ast.AnnAssign) and isinstance(y, ast.AnnAssign):
                known = self.attributes.setdefault(f"class {old.name}", _OneToOne())
                known.add(ast.unparse(x.target), ast.unparse(y.target))
                x.target = y.target = ast.Name("_", ast.Store())


def _excerpt(value: Any) -> str:
    """Return code on one short line."""
    if isinstance(value, list):
        return ", ".join(map(_excerpt, value))[:60]
    text = ast.unparse(value) if isinstance(value, ast.AST) else repr(value)
    return " ".join(text.split())[:60]


def constant(text: str) -> str:
    """Return the constant by which a file declares a claim, at any commit; empty if it does not."""
    names = [name for node in ast.parse(text).body for name in _bindings(node)]
    return next((name for name in CONSTANTS if name in names), "")


def is_needed(difference: Difference, statements: Sequence[ast.stmt], measure: str) -> bool:
    """Return whether what is measured may use the statement that differs.

    statements: of the claim's own file. measure: name of its measuring function; empty if unknown.
    """
    if not measure:
        return True
    needed = [name for s in digests.uses(statements, measure) for name in _bindings(s)]
    return bool(difference.module) or not difference.binds or difference.binds in needed


# ------------------------------------------------------------------------------- programs


def evidence(
    before: Mapping[str, Any], now: Mapping[str, Any], differences: Sequence[Difference] = ()
) -> str:
    """Return how two checkouts were seen to compute the same, as a part of a sentence.

    before, now: what `probe` prints in each. differences: those that no program of a step shows to
    be without effect. Raises `UserError` with what differs, or with what nothing shows to be equal.
    """
    whole, values = _pairs(before, now, "whole"), _pairs(before, now, "values")
    for name, (old, new) in whole.items():
        if old != new:
            raise UserError(f"the program of '{name or 'errors'}' is another one")
    for name, (old, new) in values.items():
        if json.dumps(old) != json.dumps(new):
            raise UserError(f"the values of '{name or 'errors'}' are others")
    traced = {name for name, (hash, _) in whole.items() if hash}
    if whole and len(traced) == len(whole):
        return f"equal: {_count(traced, 'program')} of all that is measured"
    if differences:
        name, said = differences[0].binds or "a statement", differences[0].said
        raise UserError(f"'{name}' differs by more than names ({said}), and no program shows that "
                        "it computes the same")  # fmt: skip
    programs = _pairs(before, now, "programs")
    names = [name for name in programs if name not in ("parts", "errors")]
    for name in names:
        (_, old), (_, new) = programs[name]
        if old != new:
            raise UserError(f"the program of '{name}' is another one")
    shown = [_count(names, "program")] if names else []
    shown += [f"values of {_count(values, 'run')}"] if values else []
    if not shown:
        raise UserError("nothing could be compared")
    return f"equal: {', '.join(shown)}"


def _pairs(before: Mapping[str, Any], now: Mapping[str, Any], what: str) -> dict[str, tuple]:
    """Pair the old and the new entries, in their order."""
    if len(before[what]) != len(now[what]):
        raise UserError(f"there are {len(now[what])} {what}, and there were {len(before[what])}")
    olds, news = before[what].values(), now[what].items()
    return {name: (old, new) for old, (name, new) in zip(olds, news, strict=True)}


def _count(items: Collection[Any], what: str) -> str:
    return f"{len(items)} {what}{'s' * (len(items) != 1)}"


# ------------------------------------------------------------------------------- two checkouts


@contextlib.contextmanager
def checkout(root: Path, commit: str) -> Iterator[Path]:
    """Provide the code of a commit of the repository `root` in a folder of its own."""
    try:
        packed = subprocess.run(
            ["git", "archive", commit, "jaxrl", "experiments"], cwd=root, check=True,
            capture_output=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"There is no commit '{commit}' with jaxrl and experiments.") from None
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def find(root: Path, id: str) -> Path:
    """Return the file of a claim in a checkout, whatever folder it is in. Raises `UserError`."""
    paths = [*(root / "experiments").glob(f"*/*/{id.replace('-', '_')}.py")]
    found = [path for path in paths if constant(digests.read_text(path))]
    if len(found) != 1:
        raise UserError(f"there are {len(found)} files of that claim in the older checkout")
    return found[0]


def probe(root: Path, id: str, known: Path | None = None) -> Any:
    """Return a function that waits for what `probe.py` prints in a checkout.

    known: a file that keeps it, for a checkout that does not change.
    """
    if known and known.exists():
        return lambda: json.loads(known.read_text("utf-8"))
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("probe.py")), str(root), id],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def wait() -> Any:
        out, error = process.communicate()
        if process.returncode:
            raise UserError(f"it cannot be built: {error.strip().splitlines()[-1]}")
        if known:
            known.parent.mkdir(parents=True, exist_ok=True)
            known.write_text(out.splitlines()[-1], "utf-8")
        return json.loads(out.splitlines()[-1])

    return wait


def probe_both(old_root: Path, root: Path, id: str, store: Path) -> tuple[Any, Any]:
    """Return what `probe.py` prints in an older checkout and in this one, run side by side.

    store: a folder that keeps the older checkout's, by the version of JAX and of `probe.py`.
    """
    text = digests.read_text(Path(__file__).with_name("probe.py"))
    version = digests.short_hash(text, importlib.metadata.version("jax"))
    before = probe(old_root, id, store / f"{id}-{version}.json")
    now = probe(root, id)
    found, errors = [], []
    for wait in (before, now):  # for both, so that no process is left alone
        try:
            found.append(wait())
        except UserError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return found[0], found[1]


def examine(
    id: str, path: Path, known: Sequence[Record], old_root: Path, root: Path, store: Path
) -> dict[str, Any]:
    """Compare a claim in two checkouts: return what is recorded of its renaming.

    path: its file in `root`. known: its records. store: a folder for what the older checkout
    prints. Raises `UserError` where not only names changed.
    """
    old_path = find(old_root, id)
    text = digests.read_text(old_path)
    sources = digests.sources(old_path, root=constant(text)), digests.sources(path)
    before, now = probe_both(old_root, root, id, store)
    attempts = [r["digest"] for r in known if r.get("event") == "begun"]
    if original(known, before["digest"]) not in attempts[-1:]:
        raise Revised("no attempt is of what the older checkout declares")
    names = data_names(before["declared"], now["declared"])
    differences = compare(*sources)
    own = next(iter(sources[1].values()))
    module, _, measure = (now["declared"].get("measure") or "").partition(":")
    measure = measure.partition(".")[0] if module.startswith("experiments.") else ""
    measure = measure if measure.isidentifier() else ""
    # Errors of an exact claim are all but 0, so equal ones show little; a tiny run shows more.
    is_exact = "errors" in now["declared"]
    needed = [x for x in differences if now["whole"] and (is_exact or not x.runs_tiny)
              and is_needed(x, own, measure)]  # fmt: skip
    shown = evidence(before, now, needed)
    # Files are alike if all that is computed from them was seen to be.
    is_whole = is_exact or (now["whole"] and None not in now["whole"].values())
    programs = {
        name: [old[0], new[0]]
        for name, (old, new) in _pairs(before, now, "programs").items()
        if old[0] != new[0] and (name != "parts" or is_whole)
    }
    changed = [x.binds or "a statement" for x in differences]
    code = f"The code of {', '.join(changed)} changed" if changed else "Only names changed"
    return {
        "from": attempts[-1],
        "to": now["digest"],
        "names": names,
        "programs": programs,
        "why": f"{code}; {shown}.",
    }


class Revised(UserError):
    """A claim whose latest attempt is of another declaration than the older checkout's."""
