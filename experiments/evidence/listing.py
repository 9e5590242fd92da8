"""Which checks there are, as their files say without being run, and which of them are meant."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evidence import digests, records
from experiments.evidence.declare import Check, Claim, Exact
from jaxrl.core.errors import UserError, unknown

Records = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Listed:
    """A check that exists, as its file says without being run. kind: "claim", "exact", or "" for
    one from before the harness."""

    id: str
    track: str
    path: Path
    kind: str
    claim: str

    def load(self) -> Check:
        """What it declares. Raises `UserError` where that is no check."""
        folder = self.path.parent
        module = importlib.import_module(f"experiments.claims.{folder.name}.{self.path.stem}")
        if not isinstance(module.CHECK, Claim | Exact):
            raise UserError(f"CHECK of {folder.name}/{self.path.name} is no Claim and no Exact.")
        return module.CHECK


def discover(root: Path) -> dict[str, Listed]:
    """Every check, by id, ordered by track and id. Reads the files and imports none. Raises
    `UserError` where two have one id, or a file cannot be read."""
    found: dict[str, Listed] = {}
    for path in sorted((root / "experiments" / "systems").glob("*/*.py")):
        if path.name.startswith("_"):
            continue
        id, track = path.stem.replace("_", "-"), path.parent.name.replace("_", "-")
        if id in found:
            raise UserError(f"{path.name} is there twice, in {found[id].track} and {track}; an id "
                            "names one check.")  # fmt: skip
        found[id] = Listed(id, track, path, *_declared(path))
    return found


def _declared(path: Path) -> tuple[str, str]:
    """The kind and the claim of the check in a file."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError as error:
        raise UserError(f"{path.parent.name}/{path.name} is no Python: {error}.") from None
    values = {}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            values[getattr(target, "id", "")] = node.value
    check = values.get("CHECK")
    if check is None:
        return "", _literal(values.get("CLAIM"))
    function = getattr(check, "func", None)
    exact = getattr(function, "attr", getattr(function, "id", "")) == "Exact"
    words = {word.arg: word.value for word in getattr(check, "keywords", ())}
    return "exact" if exact else "claim", _literal(words.get("claim"))


def _literal(node: ast.expr | None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def choose(checks: Mapping[str, Listed], ids: Sequence[str], track: str | None) -> list[Listed]:
    """The named ones, or all, of a track alone if it is said. Raises `UserError` for a name that
    does not exist."""
    for id in ids:
        if id not in checks:
            raise unknown("check", id, checks)
    tracks = {check.track for check in checks.values()}
    if track is not None and track not in tracks:
        raise unknown("track", track, tracks)
    chosen = [checks[id] for id in dict.fromkeys(ids)] or list(checks.values())
    return [check for check in chosen if track in (None, check.track)]


def pending(check: Listed, known: Records, budget: str) -> bool:
    """Whether there is no result of what it declares now, on this budget."""
    now = digests.digest(check.path), budget
    ended = records.of(known, check.id, "ended")
    return now not in [(record["digest"], record["budget"]) for record in ended]


def revised(check: Listed, known: Records) -> bool:
    """Whether its latest result is that of an earlier declaration."""
    ended = records.of(known, check.id, "ended")
    return bool(ended) and ended[-1]["digest"] != digests.digest(check.path)


def line(check: Listed, known: Records, verdict: str) -> str:
    """Track, id, verdict and marks."""
    ended = records.of(known, check.id, "ended")
    begun = records.of(known, check.id, "begun")
    marks = [f"{len(begun)} attempts"] if len(begun) > 1 else []
    if any(record["changed"] for record in begun):
        marks.append("revised")
    if records.interrupted(known, check.id):
        marks.append("interrupted")
    if not check.kind:
        verdict = "before the harness"
    elif ended:
        marks += [look["name"] for look in ended[-1]["looks"] if not look["ok"]]
        if revised(check, known):
            marks.append("revised since")
    return f"{check.track:<28} {check.id:<32} {verdict:<18} {', '.join(marks)}".rstrip()
