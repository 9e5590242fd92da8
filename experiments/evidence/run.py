"""Test the claims of papers.

python experiments/evidence/run.py [id ...] [--family F] [--stale] [--large] [--tiny] [--jobs N]
                                   [--list] [--plan] [--mutate] [--pages] [--renamed COMMIT]

Without ids, it runs all claims that have no result of what they declare now; a claim that is named
is tried once more, on fresh seeds. A claim is a file `experiments/claims/<family>/<id>.py` (with _
for -) that declares a CLAIM, and is committed before it is run. The same command resumes an
interrupted attempt. Every attempt is two lines of the `<id>.jsonl` beside the claim, from which
CLAIMS.md and the pages of the site are written.

--stale: claims whose programs differ from the recorded ones. Prints how, and pages then show it.
--large: the budget of an accelerator. --tiny: a test of the claim itself, which is not recorded.
--jobs: how many claims run side by side; by default as many as fit in memory, with two cores each.
--list: print claims and verdicts. --plan: print how long a run would take.
--mutate: break the mechanism in the ways that a claim names, and print which of them its verdict
notices. --pages: write CLAIMS.md and the page of failures, and run nothing.
--renamed COMMIT: record that claims compute what they computed at COMMIT, if names alone changed
since. Compares code and programs, and refuses anything else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a script, only this file's folder is there
    sys.path.insert(0, str(ROOT))

from experiments.evidence import children, digests, records, renaming  # noqa: E402
from experiments.evidence.listing import (  # noqa: E402
    ClaimFile,
    choose,
    current_digest,
    discover,
    is_pending,
    is_revised,
    line,
)
from experiments.evidence.words import duration  # noqa: E402
from jaxrl.commands import command_line  # noqa: E402
from jaxrl.core.errors import UserError, unknown  # noqa: E402
from jaxrl.runtime import git, run_folder  # noqa: E402

STALE = ROOT / records.STALE
STORE = ROOT / "runs" / "evidence"
FLAGS = ("list", "plan", "stale", "mutate", "tiny", "large", "pages", "child")
VALUES = ("family", "jobs", "renamed", "cores")
Records = Sequence[Mapping[str, Any]]

# ------------------------------------------------------------------------------- one claim


def standing(ended: Records) -> Any:
    """Return the `history.Standing` of a claim: the verdict of all its attempts together."""
    from experiments.evidence import history

    return history.standing(ended)


@contextlib.contextmanager
def prepare(claim: ClaimFile, budget: str, recorded: bool) -> Iterator[dict[str, Any]]:
    """Begin an attempt, and provide the arguments of what makes it.

    No other process can work at the claim meanwhile.
    """
    from experiments.evidence import attempt, history, judge, looks

    declared = claim.load()
    known = records.read(claim.records)
    digest = records.register(claim.path, ROOT) if recorded else digests.digest(claim.path)
    digest = renaming.original(known, digest)
    folder = STORE / f"{claim.id}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(run_folder.lock(folder))
        # A tiny attempt begins anew each time, so its programs do not matter.
        tiny = budget == "tiny"
        store = Path(stack.enter_context(tempfile.TemporaryDirectory())) if tiny else STORE
        programs = {} if tiny else records.programs(declared, budget, ROOT)
        before = records.read(claim.records) if recorded else []
        facts = records.circumstances(ROOT)
        begun, new = records.begin(
            before, claim.id, claim.family, declared, digest, budget,
            renaming.original_programs(known, programs),
            lambda number: facts | {"level": history.confidence(history.tries(before, number))},
        )  # fmt: skip
        if recorded and new:
            records.append(claim.records, begun)
        # A resumed attempt keeps the commit of its beginning, since its programs are the same.
        begun |= {name: fact for name, fact in facts.items() if name != "commit"}
        yield {
            "declaration": declared,
            "begun": begun,
            "tuning_root": digests.seed_roots(claim.id, digest, 0)[0],
            "store": store,
            "readers": attempt.Readers(looks.look, judge.judge, judge.judge_exact),
            "tell": functools.partial(print, flush=True),
        }


def attempt_claim(claim: ClaimFile, budget: str) -> str:
    """Make one attempt in this process, record it unless it is tiny, and return the verdict."""
    from experiments.evidence import attempt

    with prepare(claim, budget, budget != "tiny") as arguments:
        ended = attempt.run(**arguments)
        if budget != "tiny":
            records.append(claim.records, ended)
    return f"{ended['verdict']}: {ended['why']}"


def try_mutations(claim: ClaimFile, budget: str) -> bool:
    """Break the mechanism of a claim, print its verdicts, and return whether all were noticed.

    Nothing is recorded.
    """
    from experiments.evidence import mutate

    with prepare(claim, budget, recorded=False) as arguments:
        known = records.read(claim.records)
        now = current_digest(claim, known), budget
        ended = records.of(known, claim.id, "ended")
        same = [r for r in ended if (r["digest"], r["budget"]) == now]
        best = renaming.translate(same[-1]["tuned"], known, same[-1]) if same else {}
        found = mutate.mutate(**arguments, best=best)
    for mutation in found:
        print(mutation["said"], flush=True)
    if not found:
        print("It names no mutation.", flush=True)
    return all(mutation["seen"] for mutation in found)


def gather(claims: Iterable[ClaimFile]) -> list[Any]:
    """Return the `Findings` of claims, from which pages are written.

    The results that are stale are those that `--stale` found last; revisions are always known.
    """
    from experiments.evidence import findings

    claims, known = list(claims), records.read_all(ROOT)
    since = {c.id: "Its declaration was revised since." for c in claims if is_revised(c, known)}
    declared = [(claim.id, claim.family, claim.load()) for claim in claims]
    stale = {**records.noted_stale(STALE, known), **since}
    return findings.gather(declared, known, stale, standing)


def write_pages(root: Path, claims: Iterable[ClaimFile]) -> None:
    """Write the pages of claims that are committed below `root`."""
    from experiments.evidence import pages

    pages.write(root, pages.repository(gather(claims)))


def staleness(claim: ClaimFile, known: Records) -> str:
    """Return how the latest result differs from what would run now; empty if it does not."""
    ended = records.of(known, claim.id, "ended")
    if not ended:
        return ""
    try:
        now = records.programs(claim.load(), ended[-1]["budget"], ROOT)
    except Exception as error:  # a claim that is broken must not hide the others
        return f"It cannot be built any more ({type(error).__name__}: {error})."
    mine = [r for r in known if r["id"] == claim.id]
    programs = renaming.original_programs(mine, now)
    return records.staleness(ended[-1], current_digest(claim, known), programs)


def expected_seconds(
    claim: ClaimFile, known: Records, budget: str, cores: int, mutate: bool
) -> float:
    """Return the time that one attempt is likely to take, or that with each of its mutations."""
    from experiments.evidence import attempt

    try:
        declared = claim.load()
    except Exception:  # its own process says what is wrong
        return 0.0
    ended = records.of(known, claim.id, "ended")
    once = attempt.plan(declared, current_digest(claim, known), ended, budget, cores)
    return once * (1 + len(declared.mutations)) if mutate else once


# ------------------------------------------------------------------------------- renamings


def record_renamings(claims: Iterable[ClaimFile], commit: str) -> int:
    """Record which claims compute what they did at `commit`, and return the exit code.

    A claim that is up to date, and one that was revised since its last attempt, is left as it is.
    """
    try:
        commit = git.git(ROOT, "rev-parse", "--short=12", f"{commit}^{{commit}}").strip()
    except Exception:
        raise UserError(f"There is no commit '{commit}'.") from None
    refused = False
    with renaming.checkout(ROOT, commit) as old_root:
        for claim in claims:
            known = records.read(claim.records)
            attempts = [r["digest"] for r in known if r.get("event") == "begun"]
            if not attempts or current_digest(claim, known) == attempts[-1]:
                continue
            try:
                found = renaming.examine(
                    claim.id, claim.path, known, old_root, ROOT, STORE / f"renamed-{commit}"
                )
            except renaming.Revised as error:
                print(f"{claim.id}: left as it is, since {error}", flush=True)
            except UserError as error:
                refused = True
                print(f"{claim.id}: refused, since {error}", flush=True)
            else:
                record = records.rename(claim.id, claim.family, commit, found)
                records.append(claim.records, record)
                print(f"{claim.id}: {found['from']} is now {found['to']}. {found['why']}",
                      flush=True)  # fmt: skip
    return 1 if refused else 0


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
    if {"tiny", "large"} <= set(options):
        raise UserError("--tiny and --large are two budgets; give one.")
    return ids, options


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    ids, options = parse(argv)
    budget = next((name for name in ("tiny", "large") if name in options), "full")
    claims = discover(ROOT)
    chosen = choose(claims, ids, options.get("family"))
    if "child" in options:
        return child(chosen[0], budget, options)
    if "renamed" in options:
        code = record_renamings(chosen, options["renamed"])
        write_pages(ROOT, claims.values())
        return code
    jobs = children.jobs(options.get("jobs"), budget == "large")
    known = records.read_all(ROOT)
    new = chosen
    if "stale" in options:
        found = {claim.id: staleness(claim, known) for claim in new}
        for id, text in found.items():
            if text:
                print(f"{id}: {text}")
        records.note_stale(STALE, known, found)
        chosen = new = [claim for claim in new if found[claim.id]]
    elif not ids and budget != "tiny" and "mutate" not in options:
        new = [claim for claim in new if is_pending(claim, known, budget)]
    if "list" in options:
        for claim in chosen:
            ended = records.of(known, claim.id, "ended")
            print(line(claim, known, standing(ended).verdict if ended else "not run"))
        return 0
    if "pages" in options:
        new = []
    elif not new:
        print("There is nothing to run: every claim that is meant has its result.")
    cores = max(1, len(records.cores()) // jobs)
    seconds = {
        claim.id: expected_seconds(claim, known, budget, cores, "mutate" in options)
        for claim in new
    }
    if "plan" in options:
        for claim in new:
            print(f"{claim.family:<20} {claim.id:<32} {duration(seconds[claim.id]):>8}")
        print(f"{duration(sum(seconds.values()))} in all, {duration(sum(seconds.values()) / jobs)} "
              f"with {jobs} side by side.")  # fmt: skip
        return 0
    passed = [f"--{name}" for name in ("tiny", "large", "mutate") if name in options]
    recorded = not {"tiny", "mutate"} & set(options)
    if recorded:
        for claim in new:  # all of them, before anything is spent
            records.register(claim.path, ROOT)
    script = str(Path(__file__).resolve())
    codes = children.run_all([claim.id for claim in new], script, passed, jobs, seconds)
    if recorded:
        write_pages(ROOT, claims.values())
    return 1 if set(codes.values()) - {0, 2} else max(codes.values(), default=0)


def child(claim: ClaimFile, budget: str, options: Mapping[str, str]) -> int:
    """Run one claim in this process, and return the exit code."""
    if hasattr(os, "sched_setaffinity"):  # before JAX counts them
        os.sched_setaffinity(0, map(int, options["cores"].split(",")))
    if "mutate" in options:
        return 0 if try_mutations(claim, budget) else 1
    print(attempt_claim(claim, budget), flush=True)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command_line.run(main)
