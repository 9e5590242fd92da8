"""Put the claims of papers to the test:

python experiments/evidence/run.py [id ...] [--track T] [--stale] [--large] [--tiny] [--jobs N]
                                   [--list] [--plan] [--mutate] [--pages]

Without ids, all checks that have no result of what they declare now; one that is named is tried
once more, on fresh seeds. A check is a file `experiments/claims/<track>/<id>.py` (with _ for -)
that declares a CHECK, and is committed before it is run. An interrupted attempt goes on where it
was by the same command. Every attempt is two lines of results.jsonl, from which the pages are
written.

--stale: those whose programs are no longer the recorded ones, with what differs, which the pages
then say, too.
--large: the budget of an accelerator. --tiny: a trial of the check itself, not recorded.
--jobs: how many side by side; as many as there is memory for, with two cores each, unless said.
--list: what there is, and what came out. --plan: what it would take. --mutate: break the mechanism
in the ways that a check names, and say which of them its verdict sees. --pages: write them anew,
and run nothing.
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

from experiments.evidence import children, digests, records  # noqa: E402
from experiments.evidence.listing import Listed, choose, discover, line, pending, revised  # noqa: E402
from experiments.evidence.words import duration  # noqa: E402
from jaxrl.core.errors import UserError, unknown  # noqa: E402
from jaxrl.runtime import command_line, run_folder  # noqa: E402

RESULTS, STALE = ROOT / records.RESULTS, ROOT / records.STALE
STORE = ROOT / "runs" / "evidence"
FLAGS = ("list", "plan", "stale", "mutate", "tiny", "large", "pages", "child")
VALUES = ("track", "jobs", "cores")
Records = Sequence[Mapping[str, Any]]

# ------------------------------------------------------------------------------- one check


def judged(ended: Records) -> Any:
    """What all attempts of a check say together: has `verdict`, `why` and `replicated`."""
    from experiments.evidence import history

    return history.history(ended)


@contextlib.contextmanager
def prepared(check: Listed, budget: str, recorded: bool) -> Iterator[dict[str, Any]]:
    """The beginning of an attempt at a check, recorded as such or not, while no other process works
    at it; and what those that make it need."""
    from experiments.evidence import attempt, history, judge, looks

    declared = check.load()
    digest = records.registered(check.path, ROOT) if recorded else digests.digest(check.path)
    folder = STORE / f"{check.id}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(run_folder.locked(folder))
        # What is tiny begins anew each time, so it does not matter by which programs.
        tiny = budget == "tiny"
        store = Path(stack.enter_context(tempfile.TemporaryDirectory())) if tiny else STORE
        programs = {} if tiny else records.programs(declared, budget, ROOT)
        known = [r for r in records.read(RESULTS) if r["id"] == check.id] if recorded else []
        facts = records.circumstances(ROOT)
        begun, new = records.begin(
            known, check.id, check.track, declared, digest, budget, programs,
            lambda number: facts | {"level": history.confidence(history.tries(known, number))},
        )  # fmt: skip
        if recorded and new:
            records.append(RESULTS, begun)
        # One that goes on keeps the commit that it began with, as its programs are still the same.
        begun |= {name: fact for name, fact in facts.items() if name != "commit"}
        yield {
            "check": declared,
            "begun": begun,
            "tuning_root": digests.seed_roots(check.id, digest, 0)[0],
            "store": store,
            "readers": attempt.Readers(looks.look, judge.judge, judge.judge_exact),
            "tell": functools.partial(print, flush=True),
        }


def attempted(check: Listed, budget: str) -> str:
    """Make one attempt, in this process, and record it unless it is tiny: what came out."""
    from experiments.evidence import attempt

    with prepared(check, budget, budget != "tiny") as arguments:
        ended = attempt.run(**arguments)
        if budget != "tiny":
            records.append(RESULTS, ended)
    return f"{ended['verdict']}: {ended['why']}"


def mutated(check: Listed, budget: str) -> bool:
    """Break the mechanism of a check, say what its verdict is then, and return whether it sees all
    that it names. Nothing is recorded."""
    from experiments.evidence import mutate

    with prepared(check, budget, recorded=False) as arguments:
        now = digests.digest(check.path), budget
        ended = records.of(records.read(RESULTS), check.id, "ended")
        tuned = [r["tuned"] for r in ended if (r["digest"], r["budget"]) == now]
        found = mutate.mutate(**arguments, best=tuned[-1] if tuned else {})
    for mutation in found:
        print(mutation["said"], flush=True)
    if not found:
        print("It names no mutation.", flush=True)
    return all(mutation["seen"] for mutation in found)


def write_pages(root: Path, checks: Iterable[Listed], known: Records) -> None:
    """Write what a reader sees below `root`. How results are stale is what `--stale` found last;
    that a declaration was revised is always known."""
    from experiments.evidence import pages

    checks = [check for check in checks if check.kind]
    since = {c.id: "Its declaration was revised since." for c in checks if revised(c, known)}
    declared = [(check.id, check.track, check.load()) for check in checks]
    pages.write(
        root, declared, known, judged=judged, stale={**records.noted_stale(STALE, known), **since}
    )


def stale(check: Listed, known: Records) -> str:
    """How its latest result is not what would come out now, in a sentence; empty without one."""
    ended = records.of(known, check.id, "ended")
    if not ended:
        return ""
    try:
        now = records.programs(check.load(), ended[-1]["budget"], ROOT)
    except Exception as error:  # one that is broken must not hide the others
        return f"It cannot be built any more ({type(error).__name__}: {error})."
    return records.stale(ended[-1], digests.digest(check.path), now)


def expected(check: Listed, known: Records, budget: str, cores: int, mutate: bool) -> float:
    """The seconds that it is likely to take, once or with each of its mutations."""
    from experiments.evidence import attempt

    try:
        declared = check.load()
    except Exception:  # its own process says what is wrong
        return 0.0
    ended = records.of(known, check.id, "ended")
    once = attempt.plan(declared, digests.digest(check.path), ended, budget, cores)
    return once * (1 + len(declared.mutations)) if mutate else once


# ------------------------------------------------------------------------------- command line


def parse(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Ids and options. Raises `UserError` for an option that is unknown, lacks its value, or
    contradicts another."""
    ids, words = command_line.split(argv)
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
    checks = discover(ROOT)
    chosen = choose(checks, ids, options.get("track"))
    if "child" in options:
        return child(chosen[0], budget, options)
    jobs = children.side_by_side(options.get("jobs"), budget == "large")
    known = records.read(RESULTS)
    if ids and "list" not in options:
        for check in chosen:
            if not check.kind:
                raise UserError(f"'{check.id}' is from before the harness: it declares no CHECK.")
    new = [check for check in chosen if check.kind]
    if "stale" in options:
        found = {check.id: stale(check, known) for check in new}
        for id, said in found.items():
            if said:
                print(f"{id}: {said}")
        records.note_stale(STALE, known, found)
        chosen = new = [check for check in new if found[check.id]]
    elif not ids and budget != "tiny" and "mutate" not in options:
        new = [check for check in new if pending(check, known, budget)]
    if "list" in options:
        for check in chosen:
            ended = records.of(known, check.id, "ended")
            print(line(check, known, judged(ended).verdict if ended else "not run"))
        return 0
    if "pages" in options:
        new = []
    elif not new:
        print("There is nothing to run: all that is meant has its result.")
    cores = max(1, len(records.cores()) // jobs)
    seconds = {
        check.id: expected(check, known, budget, cores, "mutate" in options) for check in new
    }
    if "plan" in options:
        for check in new:
            print(f"{check.track:<28} {check.id:<32} {duration(seconds[check.id]):>8}")
        print(f"{duration(sum(seconds.values()))} in all, {duration(sum(seconds.values()) / jobs)} "
              f"with {jobs} side by side.")  # fmt: skip
        return 0
    passed = [f"--{name}" for name in ("tiny", "large", "mutate") if name in options]
    recorded = not {"tiny", "mutate"} & set(options)
    if recorded:
        for check in new:  # all of them, before anything is spent
            records.registered(check.path, ROOT)
    script = str(Path(__file__).resolve())
    codes = children.run_all([check.id for check in new], script, passed, jobs, seconds)
    if recorded:
        write_pages(ROOT, checks.values(), records.read(RESULTS))
    return 1 if set(codes.values()) - {0, 2} else max(codes.values(), default=0)


def child(check: Listed, budget: str, options: Mapping[str, str]) -> int:
    """What the process of one check does."""
    if hasattr(os, "sched_setaffinity"):  # before JAX counts them
        os.sched_setaffinity(0, map(int, options["cores"].split(",")))
    if "mutate" in options:
        return 0 if mutated(check, budget) else 1
    print(attempted(check, budget), flush=True)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command_line.run(main)
