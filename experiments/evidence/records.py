"""Records of attempts: where they lie, registration, and freshness.

The attempts at a claim are lines of a file beside it, `experiments/claims/<family>/<id>.jsonl`
(with _ for -): one when an attempt begins and one when it ends. Lines are only ever added.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evidence import digests, renaming
from experiments.evidence.declare import Claim, Declaration, Exact
from experiments.evidence.digests import as_json, digest, revisions, seed_roots, short_hash
from jaxrl.core.errors import UserError
from jaxrl.runtime import git

FORMAT = 2  # of a record; those from before the harness have none
RECORDS = "experiments/claims/*/*.jsonl"
STALE = "experiments/claims/stale.json"  # the results that `--stale` last found to be of older code
CLAIMS = "jaxrl/algorithms/claims.tsv"  # read by `jaxrl list claims`, in an installed package too
WRITTEN = (RECORDS, STALE, CLAIMS)  # by runs, so a difference from the commit is no matter

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
    """Return the harness's records of one claim and one event: "begun", "ended" or "renamed"."""
    wanted = FORMAT, id, event
    return [dict(r) for r in records if (r.get("format"), r["id"], r.get("event")) == wanted]


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
    return now


def begin(
    records: Sequence[Mapping[str, Any]],
    id: str,
    family: str,
    declaration: Declaration,
    digest: str,
    budget: str,
    programs: Mapping[str, str],
    more: Callable[[int], Mapping[str, Any]],
) -> tuple[dict[str, Any], bool]:
    """Return the record with which an attempt begins, and whether it is a new attempt.

    It is none if the last attempt was interrupted and would compute the same: that one goes on
    under its number, with the same seeds.

    records: of all claims or of this one. digest, programs: as they were before the claim was
    renamed. more: returns further facts for the attempt's number.
    """
    mine = [r for r in records if r["id"] == id]
    old = open_attempt(mine, id)
    same = {"digest": digest, "budget": budget, "programs": dict(programs)}
    if old and all(old[name] == value for name, value in same.items()):
        return old, False
    begun = of(mine, id, "begun")
    attempt, declared = len(begun) + 1, as_json(declaration)
    changed = []
    if begun and begun[-1]["digest"] != digest:
        before = renaming.translate(begun[-1]["declared"], mine, begun[-1])
        changed = revisions(before, declared)
    large = declaration.large_seeds if budget == "large" and isinstance(declaration, Claim) else 0
    return {
        "format": FORMAT,
        "event": "begun",
        "id": id,
        "family": family,
        "kind": "exact" if isinstance(declaration, Exact) else "claim",
        "attempt": attempt,
        "declared": declared,
        "changed": changed,
        "seeds": large or declaration.seeds,
        "seed_root": seed_roots(id, digest, attempt)[1],
        "seconds": 0.0,
        **same,
        **more(attempt),
    }, True


def rename(id: str, family: str, commit: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a renaming that `renaming.examine` found, compared with `commit`."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    head = {"format": FORMAT, "event": "renamed", "id": id, "family": family, "commit": commit}
    return head | {"date": date, **found}


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
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "jax": jax.__version__,
        "jaxrl": jaxrl.__version__,
        "generator": random.default_generator(),
        "cores": len(cores()),
        "device": f"{jax.devices()[0].device_kind} x {jax.device_count()}",
    }


# ------------------------------------------------------------------------------- freshness


def programs(declaration: Declaration, budget: str, root: Path) -> dict[str, str]:
    """Return the hash of each program of a claim, by "side @ environment".

    The program is the text that XLA is given for all runs of a side there (`measure.curve`):
    nothing is compiled or run, and names of functions and places in files are left out. It is
    lowered for the CPU with pcg keys, so that it is the same on every machine.

    Where a claim has a measuring function of its own, the program is the side's start and one step,
    and "parts" is the hash of the files that the claim names, without comments and docstrings. An
    exact claim has one program, "errors", or "parts" alone if it computes in NumPy.
    """
    import jax

    from experiments.evidence import measure, sides
    from jaxrl.core import random
    from jaxrl.core.train import advance, start

    keys = jax.eval_shape(lambda: jax.random.split(random.key(0, random.PCG), 1))
    files = (root / part for part in sorted(declaration.parts))
    parts = lambda: {"parts": short_hash(*map(digests.code, files))}
    if isinstance(declaration, Exact):
        try:
            with jax.enable_x64(True):
                return {"errors": _program_hash(lambda keys: declaration.errors(keys[0]), keys)}
        except jax.errors.JAXTypeError:
            return parts()
    found = parts() if declaration.measure else {}
    for (environment, side), trial in sides.trials(declaration, budget).items():
        hyper = {name: jax.ShapeDtypeStruct((1,), "float32") for name in trial.side.grid}
        run = lambda keys, hyper, trial=trial: measure.curve(trial, keys, hyper)
        if declaration.measure:
            algorithm = measure.build(trial)[1]
            run = lambda keys, hyper, algorithm=algorithm: advance(
                algorithm, start(algorithm, keys[0], {k: v[0] for k, v in hyper.items()})
            )
        found[f"{side} @ {environment}"] = _program_hash(run, keys, hyper)
    return found


def _program_hash(f: Callable, *shapes: Any) -> str:
    import jax

    text = jax.jit(f).trace(*shapes).lower(lowering_platforms=("cpu",)).as_text()
    names = re.findall(r"func\.func \w+ (@[\w.]+)", text)
    numbers = {name: f"@{i}" for i, name in enumerate(names)}
    text = re.sub(r"@[\w.]+", lambda name: numbers.get(name[0], name[0]), text)
    return short_hash(text)


def staleness(record: Mapping[str, Any], digest: str, programs: Mapping[str, str]) -> str:
    """Return how a result differs from what would run now, in a sentence; empty if it is fresh.

    digest, programs: of today's code, as they were before the claim was renamed.
    """
    if record["digest"] != digest:
        return "Its declaration was revised since."
    old = record["programs"]
    names = [name for name in {**old, **programs} if old.get(name) != programs.get(name)]
    if not names:
        return ""
    *others, last = names
    listed = f"{', '.join(others)} and {last}" if others else last
    verb = "compile to different programs" if others else "compiles to a different program"
    return f"Recorded with older code: {listed} {verb} today."


def note_stale(path: Path, known: Sequence[Mapping[str, Any]], found: Mapping[str, str]) -> None:
    """Keep in a file how the latest results of some claims are stale, since it takes minutes.

    found: id -> a sentence, empty if the result is fresh.
    """
    notes = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for id, text in found.items():
        notes.pop(id, None)
        if text:
            notes[id] = {"attempt": of(known, id, "ended")[-1]["attempt"], "said": text}
    path.write_text(json.dumps(dict(sorted(notes.items())), indent=1) + "\n", "utf-8")


def noted_stale(path: Path, known: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what the file says of results that are still the latest: id -> how they are stale."""
    notes = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {
        id: note["said"]
        for id, note in notes.items()
        if note["attempt"] == of(known, id, "ended")[-1]["attempt"]
    }
