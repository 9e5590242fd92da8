"""What is recorded of a check, whether it was declared before it ran, and whether what ran then is
what would run now: results.jsonl, registration, freshness."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.evidence import digests
from experiments.evidence.declare import Check, Claim, Exact
from experiments.evidence.digests import as_json, changed, digest, hashed, seed_roots
from jaxrl.core.errors import UserError
from jaxrl.runtime import git

FORMAT = 2  # of a record; those from before the harness have none
RESULTS = "experiments/claims/results.jsonl"
STALE = "experiments/claims/stale.json"  # which results `--stale` last found to be of older code
CLAIMS = "jaxrl/algorithms/claims.tsv"  # what `jaxrl list systems` says, also where no page is

# ------------------------------------------------------------------------------- what is recorded


def read(path: Path) -> list[dict[str, Any]]:
    """All records, oldest first. Raises `UserError` for a line that is none."""
    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path.exists() else (), 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UserError(f"Line {number} of {path.name} is no record: {error}.") from None
    return records


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one record as one line; several processes may at once."""
    line = json.dumps(as_json(record), allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:  # in one write, which no other comes between
        file.write(line.encode())


def of(records: Iterable[Mapping[str, Any]], id: str, event: str) -> list[dict[str, Any]]:
    """Those of one check that the harness wrote when an attempt had "begun" or "ended"."""
    wanted = FORMAT, id, event
    return [dict(r) for r in records if (r.get("format"), r["id"], r.get("event")) == wanted]


def interrupted(records: Sequence[Mapping[str, Any]], id: str) -> dict[str, Any] | None:
    """The last attempt, where it has begun and not ended."""
    begun, ended = (of(records, id, event) for event in ("begun", "ended"))
    open_ = begun and begun[-1]["attempt"] not in {record["attempt"] for record in ended}
    return begun[-1] if open_ else None


# ------------------------------------------------------------------------------- registration


def registered(path: Path, root: Path) -> str:
    """The digest of a check that may be run for the record. Raises `UserError` unless the commit
    that is checked out holds it, and nothing else that may change a result differs from it."""

    def committed(path: Path) -> str:
        try:
            return git.git(root, "show", f"HEAD:{path.relative_to(root).as_posix()}")
        except subprocess.CalledProcessError:
            raise FileNotFoundError(path) from None

    name, now = path.relative_to(root).as_posix(), digest(path)
    try:
        changes = git.changes(root, RESULTS, STALE, CLAIMS)
    except (OSError, subprocess.CalledProcessError):
        raise UserError(
            f"A check is registered by a commit, and git knows none at {root}."
        ) from None
    try:
        before = digest(path, committed)
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
            f"{first}{more} differs from the last commit; commit it or put it away before a result "
            "is recorded."
        )
    return now


def begin(
    records: Sequence[Mapping[str, Any]],
    id: str,
    track: str,
    check: Check,
    digest: str,
    budget: str,
    programs: Mapping[str, str],
    more: Callable[[int], Mapping[str, Any]],
) -> tuple[dict[str, Any], bool]:
    """What is recorded when an attempt begins, with `more(its number)`; and whether it is new. It
    is not where the last one was interrupted and would compute the same: that goes on under its
    number, with the same seeds."""
    old = interrupted(records, id)
    same = {"digest": digest, "budget": budget, "programs": dict(programs)}
    if old and all(old[name] == value for name, value in same.items()):
        return old, False
    begun = of(records, id, "begun")
    attempt = len(begun) + 1
    revised = bool(begun) and begun[-1]["digest"] != digest
    said = as_json(check)
    large = check.large_seeds if budget == "large" and isinstance(check, Claim) else 0
    return {
        "format": FORMAT,
        "event": "begun",
        "id": id,
        "track": track,
        "kind": "exact" if isinstance(check, Exact) else "claim",
        "attempt": attempt,
        "declared": said,
        "changed": changed(begun[-1]["declared"], said) if revised else [],
        "seeds": large or check.seeds,
        "seed_root": seed_roots(id, digest, attempt)[1],
        "seconds": 0.0,
        **same,
        **more(attempt),
    }, True


def cores() -> list[int]:
    """The numbers of those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def circumstances(root: Path) -> dict[str, Any]:
    """When, where, and by which code something is run."""
    import jax

    import jaxrl
    from jaxrl.core import random

    return {
        "commit": git.commit(root, RESULTS, STALE, CLAIMS),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "jax": jax.__version__,
        "jaxrl": jaxrl.__version__,
        "generator": random.default_generator(),
        "cores": len(cores()),
        "device": f"{jax.devices()[0].device_kind} x {jax.device_count()}",
    }


# ------------------------------------------------------------------------------- freshness


def programs(check: Check, budget: str, root: Path) -> dict[str, str]:
    """ "side @ world" -> hash of the program of its runs there (`measure.curve`), as XLA is given
    it: nothing is compiled or run, and names of functions and places in files are not in it.
    Lowered for the CPU with pcg keys, so that it is the same on every machine.

    Where a claim measures by itself, hash of its start and one step, and as "parts" that of the
    files that it names, without comments and docstrings. An exact check has one program, "errors",
    or, where it computes in NumPy, "parts" alone.
    """
    import jax

    from experiments.evidence import measure, sides
    from jaxrl.core import random
    from jaxrl.core.train import advance, start

    keys = jax.eval_shape(lambda: jax.random.split(random.key(0, random.PCG), 1))
    parts = lambda: {"parts": hashed(*(digests.whole(root / part) for part in sorted(check.parts)))}
    if isinstance(check, Exact):
        try:
            with jax.enable_x64(True):
                return {"errors": _lowered(lambda keys: check.errors(keys[0]), keys)}
        except jax.errors.JAXTypeError:
            return parts()
    found = parts() if check.measure else {}
    for (environment, side), trial in sides.trials(check, budget).items():
        hyper = {name: jax.ShapeDtypeStruct((1,), "float32") for name in trial.side.grid}
        run = lambda keys, hyper, trial=trial: measure.curve(trial, keys, hyper)
        if check.measure:
            algorithm = measure.built(trial)[1]
            run = lambda keys, hyper, algorithm=algorithm: advance(
                algorithm, start(algorithm, keys[0], {k: v[0] for k, v in hyper.items()})
            )
        found[f"{side} @ {environment}"] = _lowered(run, keys, hyper)
    return found


def _lowered(f: Callable, *shapes: Any) -> str:
    import jax

    text = jax.jit(f).trace(*shapes).lower(lowering_platforms=("cpu",)).as_text()
    names = re.findall(r"func\.func \w+ (@[\w.]+)", text)
    numbers = {name: f"@{i}" for i, name in enumerate(names)}
    text = re.sub(r"@[\w.]+", lambda name: numbers.get(name[0], name[0]), text)
    return hashed(text)


def stale(record: Mapping[str, Any], digest: str, programs: Mapping[str, str]) -> str:
    """What makes a record one of something else than what would run now, in a sentence; empty if
    it is fresh."""
    if record["digest"] != digest:
        return "Its declaration was revised since."
    old = record["programs"]
    names = [name for name in {**old, **programs} if old.get(name) != programs.get(name)]
    if len(names) < 2:
        return f"The program of {names[0]} is another one since." if names else ""
    return f"The programs of {', '.join(names[:-1])} and {names[-1]} are others since."


def note_stale(path: Path, known: Sequence[Mapping[str, Any]], found: Mapping[str, str]) -> None:
    """Keep in the file at `path` how the latest results of these checks (id -> a sentence, empty
    if it is fresh) are stale, since finding out takes minutes."""
    notes = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for id, said in found.items():
        notes.pop(id, None)
        if said:
            notes[id] = {"attempt": of(known, id, "ended")[-1]["attempt"], "said": said}
    path.write_text(json.dumps(dict(sorted(notes.items())), indent=1) + "\n", "utf-8")


def noted_stale(path: Path, known: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What is kept of those results that are still the latest: id -> how they are stale."""
    notes = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {
        id: note["said"]
        for id, note in notes.items()
        if note["attempt"] == of(known, id, "ended")[-1]["attempt"]
    }
