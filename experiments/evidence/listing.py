"""Claims that are declared, as their files say without being run."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jaxrl
from experiments.evidence import digests, records
from experiments.evidence.declare import Claim, Declaration, Exact
from jaxrl.core.errors import UserError, unknown

Records = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class ClaimFile:
    """The file of a claim, read and not run.

    kind: "claim" or "exact". claim: its sentence.
    """

    id: str
    family: str
    path: Path
    kind: str
    claim: str

    @property
    def records(self) -> Path:
        """The file of its attempts."""
        return self.path.with_suffix(".jsonl")

    @property
    def devices(self) -> int:
        """Number of devices, virtual ones on a CPU, that it needs: its constant DEVICES, or 1."""
        for node in ast.parse(self.path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DEVICES":
                return ast.literal_eval(node.value)
        return 1

    def load(self) -> Declaration:
        """Import the file and return what it declares. Raises `UserError` if that is no claim."""
        name = f"experiments.claims.{self.family}.{self.path.stem}"
        module = importlib.import_module(name)
        if not isinstance(module.CLAIM, Claim | Exact):
            raise UserError(f"CLAIM of {self.family}/{self.path.name} is no Claim and no Exact.")
        return module.CLAIM


def discover(root: Path) -> dict[str, ClaimFile]:
    """Return every claim by id, ordered by family and id. Reads the files and imports none.

    Raises `UserError` if two claims have one id, if a file cannot be read, or declares none.
    """
    found: dict[str, ClaimFile] = {}
    for path in sorted((root / "experiments" / "claims").glob("*/*.py")):
        if path.name.startswith("_"):
            continue
        id, family = path.stem.replace("_", "-"), path.parent.name
        if id in found:
            raise UserError(f"{path.name} is there twice, in {found[id].family} and {family}; an "
                            "id names one claim.")  # fmt: skip
        found[id] = ClaimFile(id, family, path, *_kind_and_claim(path))
    return found


def _kind_and_claim(path: Path) -> tuple[str, str]:
    """Return the kind and the sentence of the claim in a file."""
    name = f"{path.parent.name}/{path.name}"
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError as error:
        raise UserError(f"{name} is no Python: {error}.") from None
    values = {}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            values[getattr(target, "id", "")] = node.value
    call = values.get(digests.CLAIM)
    if not isinstance(call, ast.Call):
        raise UserError(f"{name} declares no {digests.CLAIM}; helpers have names with a _ first.")
    exact = getattr(call.func, "attr", getattr(call.func, "id", "")) == "Exact"
    claim = next((word.value for word in call.keywords if word.arg == "claim"), None)
    text = str(claim.value) if isinstance(claim, ast.Constant) else ""
    return "exact" if exact else "claim", text


def choose(
    claims: Mapping[str, ClaimFile], ids: Sequence[str], family: str | None
) -> list[ClaimFile]:
    """Return the named claims, or all, of one family if it is given.

    Raises `UserError` for a name that does not exist.
    """
    for id in ids:
        if id not in claims:
            raise unknown("claim", id, claims)
    families = {claim.family for claim in claims.values()}
    if family is not None and family not in families:
        raise unknown("family", family, families)
    chosen = [claims[id] for id in dict.fromkeys(ids)] or list(claims.values())
    return [claim for claim in chosen if family in (None, claim.family)]


def current_digest(claim: ClaimFile, known: Records) -> str:
    """Return the digest of what a claim declares now, as it was before the claim was renamed."""
    mine = [r for r in known if r["id"] == claim.id]
    return records.original(mine, digests.digest(claim.path))


def is_pending(claim: ClaimFile, known: Records, budget: str) -> bool:
    """Return whether there is no result of what it declares now, on this budget."""
    now = current_digest(claim, known), budget
    ended = records.of(known, claim.id, "ended")
    return now not in [(record["digest"], record["budget"]) for record in ended]


def is_revised(claim: ClaimFile, known: Records) -> bool:
    """Return whether its latest result is of an earlier declaration."""
    last = latest(claim, known)
    return bool(last) and last["digest"] != current_digest(claim, known)


def latest(claim: ClaimFile, known: Records) -> dict[str, Any]:
    """Return the record of the last attempt that ended, which is no pilot; empty without one."""
    ended = records.of(known, claim.id, "ended")
    return next((r for r in reversed(ended) if r["budget"] != "pilot"), {})


def stale(claim: ClaimFile, known: Records) -> str:
    """Return how the latest result differs from what would run now; empty if as far as known it
    does not."""
    if is_revised(claim, known):
        return "Its declaration was revised since."
    last = _last_replay(claim, known)
    return last["said"] if last and not last["ok"] else ""


def is_released(claim: ClaimFile, known: Records) -> bool:
    """Return whether the latest result was recorded or replayed at this minor version, or has no
    seed to replay."""
    minor = lambda record: str(record["jaxrl"]).split(".")[:2]
    last = _last_replay(claim, known) or latest(claim, known)
    return not latest(claim, known).get("values") or minor(last) == minor(
        {"jaxrl": jaxrl.__version__}
    )


def _last_replay(claim: ClaimFile, known: Records) -> dict[str, Any]:
    """Return the last replay of the latest attempt; empty without one."""
    found = records.of(known, claim.id, "replayed")
    number = latest(claim, known).get("attempt")
    return found[-1] if found and found[-1]["attempt"] == number else {}


def line(claim: ClaimFile, known: Records, verdict: str) -> str:
    """Return family, id, verdict and marks."""
    ended = records.of(known, claim.id, "ended")
    begun = records.of(known, claim.id, "begun")
    marks = [f"{len(begun)} attempts"] if len(begun) > 1 else []
    if any(record["changed"] for record in begun):
        marks.append("revised")
    if records.open_attempt(known, claim.id):
        marks.append("interrupted")
    if ended:
        marks += [look["name"] for look in latest(claim, known).get("looks", ()) if not look["ok"]]
        if is_revised(claim, known):
            marks.append("revised since")
    return f"{claim.family:<20} {claim.id:<32} {verdict:<32} {', '.join(marks)}".rstrip()
