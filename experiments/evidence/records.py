"""Records of attempts: where they lie, what may be recorded, and which results count today.

The attempts at a claim are lines of a file beside it, `experiments/claims/<family>/<id>.jsonl`
(with _ for -). Lines are only ever added. Their events:

begun, ended: of an attempt or a pilot.
judged: an attempt that ended, judged by later rules; its verdict and clauses count from then on.
replayed: a seed of the latest attempt, run with later code (`replay`).
mutated: which mutations the verdict of the latest attempt notices.
renamed: the digest that a claim has since names changed, and the one it had.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evidence.declare import Claim, Declaration, Exact
from experiments.evidence.digests import as_json, digest, revisions, seed_roots
from jaxrl.core.errors import UserError
from jaxrl.runtime import git

FORMAT = 2  # of a record; those from before the harness have none
RULES = 2  # by which attempts are judged; see `judge`
RECORDS = "experiments/claims/*/*.jsonl"
BEST = "experiments/claims/best.jsonl"  # see `scale`
CLAIMS = "jaxrl/algorithms/claims.tsv"  # read by `jaxrl list claims`, in an installed package too
BASELINES = "experiments/claims/baselines.jsonl"  # see `bank`
WRITTEN = (
    RECORDS,
    BEST,
    BASELINES,
    CLAIMS,
)  # by runs, so a difference from the commit is no matter

# ------------------------------------------------------------------------------- files


def read(path: Path) -> list[dict[str, Any]]:
    """Return all records of a file, oldest first. Raises `UserError` for a line that is none."""
    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path.exists() else (), 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UserError(f"Line {number} of {path.name} is no record: {error}.") from None
    return records


def read_all(root: Path) -> list[dict[str, Any]]:
    """Return the records of all claims in the repository `root`; of each claim oldest first."""
    return [record for path in sorted(root.glob(RECORDS)) for record in read(path)]


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one record as one line. Several processes may write to a file at once."""
    line = json.dumps(as_json(record), allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:  # one write, so that no other comes between
        file.write(line.encode())


def of(records: Iterable[Mapping[str, Any]], id: str, event: str) -> list[dict[str, Any]]:
    """Return the harness's records of one claim and one event, oldest first."""
    wanted = FORMAT, id, event
    return [dict(r) for r in records if (r.get("format"), r["id"], r.get("event")) == wanted]


def with_judgements(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return records with the verdicts that count today, in their order.

    An attempt that ended has the verdict, reason, level and clauses of its last judgement, and the
    verdict that it `was` recorded with.
    """
    records = list(records)
    last = {(r["id"], r["attempt"]): r for r in records if r.get("event") == "judged"}
    names = ("verdict", "why", "level", "clauses", "rules")

    def now(record: Mapping[str, Any]) -> dict[str, Any]:
        later = last.get((record["id"], record.get("attempt")))
        if later is None or record.get("event") != "ended":
            return dict(record)
        return {**record, "was": record["verdict"], **{name: later[name] for name in names}}

    return [now(record) for record in records]


def original(records: Iterable[Mapping[str, Any]], digest: str) -> str:
    """Return the digest that a claim had before it was renamed; `digest` itself if it never was.

    records: of one claim. Seeds depend on the original digest, so a renaming keeps them.
    """
    before = {r["to"]: r["from"] for r in records if r.get("event") == "renamed"}
    return before.get(digest, digest)


def with_names(value: Any, records: Iterable[Mapping[str, Any]]) -> Any:
    """Return data of an attempt, such as its declaration, in today's names.

    records: of one claim, those of its renamings among them.
    """
    # A later comparison with one and the same commit has all the names of an earlier one.
    names = {r["commit"]: r["names"] for r in records if r.get("event") == "renamed"}
    for one in names.values():
        value = _with_new_names(value, one)
    return value


def _with_new_names(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {names.get(key, key): _with_new_names(x, names) for key, x in value.items()}
    if isinstance(value, list):
        return [_with_new_names(x, names) for x in value]
    return names.get(value, value) if isinstance(value, str) else value


def open_attempt(records: Sequence[Mapping[str, Any]], id: str) -> dict[str, Any] | None:
    """Return the record of the last attempt if it began and has not ended."""
    begun, ended = (of(records, id, event) for event in ("begun", "ended"))
    is_open = begun and begun[-1]["attempt"] not in {record["attempt"] for record in ended}
    return begun[-1] if is_open else None


# ------------------------------------------------------------------------------- registration


def register(path: Path, root: Path) -> str:
    """Return the digest of a claim that may be run for the record.

    Raises `UserError` unless the commit that is checked out holds the claim as it is, and no other
    file that may change a result differs from the commit.
    """

    def read_committed(path: Path) -> str:
        try:
            return git.git(root, "show", f"HEAD:{path.relative_to(root).as_posix()}")
        except subprocess.CalledProcessError:
            raise FileNotFoundError(path) from None

    name, now = path.relative_to(root).as_posix(), digest(path)
    try:
        changes = git.changes(root, *WRITTEN)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(
            f"A claim is registered by a commit, and there is no git repository at {root}."
        ) from None
    try:
        before = digest(path, read_committed)
    except FileNotFoundError:
        before = "in no commit"
    if before != now:
        raise UserError(
            f"What {name} declares ({now}) is not what was committed ({before}); a declaration is "
            "committed before it is run."
        )
    if changes:
        first, *rest = (line[3:] for line in changes.splitlines())
        more = f" and {len(rest)} more" if rest else ""
        raise UserError(
            f"{first}{more} differs from the last commit; commit or stash it before a result is "
            "recorded."
        )
    if lost := lost_lines(path.with_suffix(".jsonl"), root):
        raise UserError(
            f"{lost} of {name.removesuffix('.py')}.jsonl was recorded and is gone; attempts and "
            "pilots stay recorded. Bring it back from the history of the repository."
        )
    return now


def check_store(store: Path, id: str, known: Iterable[Mapping[str, Any]]) -> None:
    """Raise `UserError` if an attempt or a pilot ran on this machine and has no record.

    store: the folder that keeps the parts of attempts. known: records of the claim.
    """
    numbers = {f"{r['attempt']}-{r['budget']}" for r in known if r.get("event") == "begun"}
    for folder in sorted(store.glob(f"{id}-{'[0-9a-f]' * 12}/[0-9]*-*")):
        if folder.name not in numbers:
            number, _, budget = folder.name.partition("-")
            raise UserError(
                f"Attempt {number} at {id} ({budget}) ran here and has no record; what was seen "
                "stays recorded."
            )


def lost_lines(path: Path, root: Path) -> str:
    """Return which line of a file of records an earlier commit has and the file has not.

    In words; empty if none is lost.
    """
    name = path.relative_to(root).as_posix()
    now = set(path.read_text("utf-8").splitlines()) if path.exists() else set()
    for commit in git.git(root, "log", "--format=%H", "--", name).split():
        try:
            before = git.git(root, "show", f"{commit}:{name}").splitlines()
        except subprocess.CalledProcessError:
            continue  # it was moved there or away
        for number, line in enumerate(before, 1):
            if line not in now:
                return f"Line {number} (commit {commit[:7]})"
    return ""


def begin(
    records: Sequence[Mapping[str, Any]],
    id: str,
    family: str,
    declaration: Declaration,
    digest: str,
    budget: str,
    more: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    root: Callable[[int], int] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Return the record with which an attempt begins, and whether it is a new attempt.

    It is none if the last attempt was interrupted and is of the same declaration: that one goes on
    under its number, with the same seeds.

    records: of all claims or of this one. digest: as it was before the claim was renamed. more:
    returns further facts for the record, given it. root: of the seeds, given the attempt's number;
        if None, it follows from the id, the digest and the attempt.
    """
    mine = [r for r in records if r["id"] == id]
    old = open_attempt(mine, id)
    same = {"digest": digest, "budget": budget}
    if old and all(old[name] == value for name, value in same.items()):
        return old, False
    begun = of(mine, id, "begun")
    attempt, declared = len(begun) + 1, as_json(declaration)
    changed = []
    if begun and begun[-1]["digest"] != digest:
        changed = revisions(with_names(begun[-1]["declared"], mine), declared)
    large = declaration.large_seeds if budget == "large" and isinstance(declaration, Claim) else 0
    record = {
        "format": FORMAT,
        "rules": RULES,
        "event": "begun",
        "id": id,
        "family": family,
        "kind": "exact" if isinstance(declaration, Exact) else "claim",
        "attempt": attempt,
        "declared": declared,
        "changed": changed,
        "seeds": large or declaration.seeds,
        "seed_root": root(attempt) if root else seed_roots(id, digest, attempt)[1],
        "seconds": 0.0,
        **same,
    }
    return {**record, **more(record)}, True


def later(ended: Mapping[str, Any], event: str, root: Path, **found: Any) -> dict[str, Any]:
    """Return the record of an event that concerns an attempt that ended."""
    names = ("format", "id", "family", "attempt")
    facts = circumstances(root)
    return {name: ended[name] for name in names} | {"event": event, **facts, **found}


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def circumstances(root: Path) -> dict[str, Any]:
    """Return the date, the machine and the code of an attempt, as a record has them."""
    import jax

    import jaxrl
    from jaxrl.core import random

    return {
        "commit": git.commit(root, *WRITTEN),
        "code": git.git(root, "rev-parse", "--short=12", "HEAD:jaxrl").strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "jax": jax.__version__,
        "jaxrl": jaxrl.__version__,
        "generator": random.default_generator(),
        "cores": len(cores()),
        "device": f"{jax.devices()[0].device_kind} x {jax.device_count()}",
    }
