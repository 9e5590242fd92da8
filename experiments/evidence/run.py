"""Test the claims of papers.

python experiments/evidence/run.py [id ...] [--family F] [--large] [--tiny] [--pilot] [--jobs N]
                                   [--list] [--plan] [--mutate] [--replay] [--judge] [--pages]
                                   [--renamed]

Without ids, it runs all claims that have no result of what they declare now; a claim that is named
is tried once more, on fresh seeds. A claim is a file `experiments/claims/<family>/<id>.py` (with _
for -) that declares a CLAIM, and is committed before it is run. The same command resumes an
interrupted attempt. Every attempt is two lines of the `<id>.jsonl` beside the claim, from which
CLAIMS.md, the table of best results and the pages of the site are written.

--large: the budget of an accelerator. --tiny: a test of the claim itself, which is not recorded.
--pilot: run the tuning seeds alone. It is recorded, and another design afterwards is another try.
--jobs: how many claims run side by side; by default as many as fit in memory, with two cores each.
--list: print claims and verdicts. --plan: print how long a run would take.
--mutate: break the mechanism in the ways that a claim names, and record which of them its verdict
notices. --replay: run one recorded seed of every side again, and record whether it still lies among
the recorded ones; without ids, of all claims that were not replayed at this minor version.
--judge: judge recorded attempts by today's rules, where those are other ones. --pages: write pages
and run nothing. --renamed: record that a claim has other code and names since its last attempt and
computes the same, if its declaration has the same data and its replayed seed has the recorded
values, or lies among them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a script, only this file's folder is there
    sys.path.insert(0, str(ROOT))

from experiments.evidence import children, digests, records  # noqa: E402
from experiments.evidence.declare import Claim  # noqa: E402
from experiments.evidence.listing import (  # noqa: E402
    ClaimFile,
    choose,
    current_digest,
    discover,
    is_pending,
    is_released,
    latest,
    line,
    stale,
)
from experiments.evidence.words import duration  # noqa: E402
from jaxrl.commands import command_line  # noqa: E402
from jaxrl.core.errors import UserError, unknown  # noqa: E402
from jaxrl.runtime import run_folder  # noqa: E402

BEST = ROOT / records.BEST
BASELINES = ROOT / records.BASELINES
SUITES = ROOT / "docs" / "suites"
STORE = ROOT / "runs" / "evidence"
BUDGETS = ("tiny", "pilot", "large")  # beside "full"
FLAGS = (*BUDGETS, "list", "plan", "mutate", "replay", "judge", "renamed", "pages", "child")
VALUES = ("family", "jobs", "cores")
PART = 0.1  # of the time of an attempt, that a replay or a mutation takes
Records = Sequence[Mapping[str, Any]]

# ------------------------------------------------------------------------------- one claim


def standing(ended: Records) -> Any:
    """Return the `history.Standing` of a claim: the verdict of all its attempts together."""
    from experiments.evidence import history

    return history.standing(ended)


@contextlib.contextmanager
def prepare(claim: ClaimFile, budget: str, recorded: bool) -> Iterator[dict[str, Any]]:
    """Begin an attempt, and provide the arguments of what makes it.

    No other process can work at the claim meanwhile. Raises `UserError` for what may not be
    recorded.
    """
    from experiments.evidence import attempt, bank, history, judge, looks, scale

    declared = claim.load()
    known = records.read(claim.records)
    digest = records.register(claim.path, ROOT) if recorded else digests.digest(claim.path)
    digest = records.original(known, digest)
    folder = STORE / f"{claim.id}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(run_folder.lock(folder))
        tiny = budget == "tiny"  # begins anew each time
        store = Path(stack.enter_context(tempfile.TemporaryDirectory())) if tiny else STORE
        before = records.read(claim.records) if recorded else []
        if recorded:
            records.check_store(STORE, claim.id, before)
            if isinstance(declared, Claim):
                bank.check(declared)
                scale.check_margins(declared, scale.read(BEST))
        facts = records.circumstances(ROOT)

        def more(record: Mapping[str, Any]) -> dict[str, Any]:
            tries = history.tries([*records.with_judgements(before), record], record["attempt"])
            return {**facts, "level": history.confidence(tries)}

        root = bank.block_root if bank.is_shared(declared) else None
        begun, new = records.begin(
            before, claim.id, claim.family, declared, digest, budget, more, root
        )
        if recorded and new:
            records.append(claim.records, begun)
        begun |= facts  # where code changed meanwhile, a resumed attempt makes its parts anew
        yield {
            "declaration": declared,
            "begun": begun,
            "tuning_root": digests.seed_roots(claim.id, digest, 0)[0],
            "store": store,
            "readers": attempt.Readers(looks.look, judge.judge, judge.judge_exact),
            "tell": functools.partial(print, flush=True),
            "bank": bank.Bank(BASELINES, lambda: facts) if recorded else None,
        }


def attempt_claim(claim: ClaimFile, budget: str) -> str:
    """Make one attempt in this process, record it unless it is tiny, and return the verdict."""
    from experiments.evidence import attempt

    with prepare(claim, budget, budget != "tiny") as arguments:
        ended = attempt.run(**arguments)
        if budget != "tiny":
            records.append(claim.records, ended)
    return f"{ended['verdict']}: {ended['why']}"


def try_mutations(claim: ClaimFile) -> bool:
    """Break the mechanism of a claim, record what its verdict notices, and return whether it is all
    of it."""
    from experiments.evidence import attempt, judge, looks, mutate

    ended = latest_result(claim)
    if ended is None:
        return False
    readers = attempt.Readers(looks.look, judge.judge, judge.judge_exact)
    found = mutate.mutate(claim.load(), ended, readers, functools.partial(print, flush=True))
    for mutation in found:
        print(mutation["said"], flush=True)
    if not found:
        print("It names no mutation.", flush=True)
        return True
    records.append(claim.records, records.later(ended, "mutated", ROOT, mutations=found))
    return all(mutation["seen"] for mutation in found)


def latest_result(claim: ClaimFile, renamed: bool = False) -> dict[str, Any] | None:
    """Return the latest result, in today's names and with the verdict that counts.

    None, with a sentence printed, if there is none or if it is of another declaration. renamed:
    whether it shall be of another one.
    """
    known = records.with_judgements(records.read(claim.records))
    ended = latest(claim, known)
    if not ended.get("values"):
        print("It has no result with reported seeds.", flush=True)
        return None
    if renamed == (current_digest(claim, known) == ended["digest"]):
        why = "Its names are the recorded ones." if renamed else (
            "Its declaration was revised since: run it anew, or record with --renamed that it only "
            "has other names."
        )  # fmt: skip
        print(why, flush=True)
        return None
    return records.with_names(ended, known)


def gather(claims: Iterable[ClaimFile]) -> list[Any]:
    """Return the `Findings` of claims, from which pages are written."""
    from experiments.evidence import findings, scale

    claims, known = list(claims), records.with_judgements(records.read_all(ROOT))
    declared = [(claim.id, claim.family, claim.load()) for claim in claims]
    old = {claim.id: said for claim in claims if (said := stale(claim, known))}
    return findings.gather(declared, known, old, standing, scale.read(BEST))


def write_pages(root: Path, claims: Iterable[ClaimFile]) -> None:
    """Write the table of best results, and the pages of claims that are committed, below `root`."""
    from experiments.evidence import bank, pages, scale

    known = records.with_judgements(records.read_all(ROOT))
    named = [records.with_names(r, [x for x in known if x["id"] == r["id"]]) for r in known]
    suites = {path.stem: json.loads(path.read_text("utf-8")) for path in SUITES.glob("*.json")}
    scale.write(
        root / records.BEST, scale.table(named, suites, bank.results(BASELINES), scale.read(BEST))
    )
    pages.write(root, pages.repository(gather(claims)))


def replay_claim(claim: ClaimFile, renamed: bool) -> bool:
    """Replay the first seed of a claim's latest result, record it, and return whether all is well.

    renamed: whether to record that the claim has other names, if the values are the recorded ones.
    """
    from experiments.evidence import replay

    ended = latest_result(claim, renamed)
    if ended is None:
        return renamed or not latest(claim, records.read(claim.records)).get("values")
    declared = claim.load()
    if renamed:
        changed = digests.data_changes(ended["declared"], digests.as_json(declared))
        if changed:
            print(f"It is more than renamed: {' '.join(changed)}", flush=True)
            return False
    found = replay.replay(declared, ended, functools.partial(print, flush=True))
    print(found.said, flush=True)
    if renamed and not found.ok:
        print("So it is more than renamed; run it anew.", flush=True)
        return False
    event, facts = "replayed", dataclasses.asdict(found)
    if renamed:
        now = digests.digest(claim.path)
        event, facts = (
            "renamed",
            {"from": ended["digest"], "to": now, "names": {}, "why": found.said},
        )
    records.append(claim.records, records.later(ended, event, ROOT, **facts))
    return found.ok


def judge_again(claim: ClaimFile) -> None:
    """Judge each recorded attempt by today's rules, and record what changes."""
    from experiments.evidence import judge

    for record in records.with_judgements(records.read(claim.records)):
        if record.get("event") == "ended" and record.get("rules", 1) < records.RULES:
            found = judge.judge_record(record, records.read(claim.records))
            if found is None:
                continue
            records.append(claim.records, records.later(record, "judged", ROOT, **found))
            same = "still" if found["verdict"] == record["verdict"] else f"was {record['verdict']},"
            print(f"{claim.id}, attempt {record['attempt']}: {same} {found['verdict']}", flush=True)


def expected_seconds(
    claim: ClaimFile, known: Records, budget: str, cores: int, options: Collection[str]
) -> float:
    """Return the time that an attempt, a replay or all mutations are likely to take."""
    from experiments.evidence import attempt

    try:
        declared = claim.load()
    except Exception:  # its own process says what is wrong
        return 0.0
    ended = records.of(known, claim.id, "ended")
    once = attempt.plan(declared, current_digest(claim, known), ended, budget, cores)
    if {"replay", "renamed"} & set(options):
        return PART * once
    return PART * once * len(declared.mutations) if "mutate" in options else once


# ------------------------------------------------------------------------------- command line


def parse(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return ids and options.

    Raises `UserError` for an option that is unknown, lacks its value, or contradicts another.
    """
    ids, words = command_line.split_words(argv)
    options = {}
    for name, following in words.items():
        if name in FLAGS:
            options[name] = ""
            ids += following
        elif name not in VALUES:
            known = [f"--{n}" for n in FLAGS[:-1] + VALUES[:-1]]  # the last are for `child`
            raise unknown("option", f"--{name}", known)
        elif not following:
            raise UserError(f"--{name} needs a value.")
        else:
            options[name] = following[0]
            ids += following[1:]
    if len(budgets := [f"--{name}" for name in BUDGETS if name in options]) > 1:
        raise UserError(f"{' and '.join(budgets)} are {len(budgets)} budgets; give one.")
    return ids, options


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    ids, options = parse(argv)
    budget = next((name for name in BUDGETS if name in options), "full")
    claims = discover(ROOT)
    chosen = choose(claims, ids, options.get("family"))
    if "child" in options:
        return child(chosen[0], budget, options)
    jobs = children.jobs(options.get("jobs"), budget == "large")
    known = records.with_judgements(records.read_all(ROOT))
    new = chosen
    if "judge" in options:
        for claim in chosen:
            judge_again(claim)
        write_pages(ROOT, claims.values())
        return 0
    if "replay" in options and not ids:
        new = [claim for claim in new if not is_released(claim, known)]
    elif not ids and not {"tiny", "mutate", "renamed"} & set(options):
        new = [claim for claim in new if is_pending(claim, known, budget)]
    if "list" in options:
        for claim in chosen:
            mine = [r for r in known if r["id"] == claim.id]
            ended = [r for r in records.of(mine, claim.id, "ended") if r["budget"] != "pilot"]
            print(line(claim, known, str(standing(mine)) if ended else "not run"))
        return 0
    if "pages" in options:
        new = []
    elif not new:
        print("There is nothing to run: every claim that is meant has its result.")
    cores = max(1, len(records.cores()) // jobs)
    seconds = {claim.id: expected_seconds(claim, known, budget, cores, options) for claim in new}
    if "plan" in options:
        for claim in new:
            print(f"{claim.family:<20} {claim.id:<32} {duration(seconds[claim.id]):>8}")
        print(f"{duration(sum(seconds.values()))} in all, {duration(sum(seconds.values()) / jobs)} "
              f"with {jobs} side by side.")  # fmt: skip
        return 0
    modes = (*BUDGETS, "mutate", "replay", "renamed")
    passed = [f"--{name}" for name in modes if name in options]
    recorded = not {"tiny", "mutate", "replay", "renamed"} & set(options)
    if recorded:
        for claim in new:  # all of them, before anything is spent
            records.register(claim.path, ROOT)
    script = str(Path(__file__).resolve())
    codes = children.run_all([claim.id for claim in new], script, passed, jobs, seconds)
    if "tiny" not in options:
        write_pages(ROOT, claims.values())
    return 1 if set(codes.values()) - {0, 2} else max(codes.values(), default=0)


def child(claim: ClaimFile, budget: str, options: Mapping[str, str]) -> int:
    """Run one claim in this process, and return the exit code."""
    if hasattr(os, "sched_setaffinity"):  # before JAX counts them
        os.sched_setaffinity(0, map(int, options["cores"].split(",")))
    if (count := claim.devices) > 1:  # before JAX makes them
        flag = f"--xla_force_host_platform_device_count={count}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    if "mutate" in options:
        return 0 if try_mutations(claim) else 1
    if {"replay", "renamed"} & set(options):
        return 0 if replay_claim(claim, "renamed" in options) else 1
    print(attempt_claim(claim, budget), flush=True)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command_line.run(main)
