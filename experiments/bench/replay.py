"""Adding to a replay and drawing from it beside flashbax.

    python experiments/bench/replay.py [--only uniform sequence] [--capacities 100000] [--quick]

Every figure comes from a fresh process, and the sides take turns. experiments/bench/README.md says
what is measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import peer
import processes
import report
import turns

PEER = peer.Peer("flashbax", "0.1.3")
KINDS = {
    "uniform": {"batch": 256, "length": None},
    "sequence": {"batch": 64, "length": 16},
    "priority": {"batch": 256, "length": None},
}
ITEMS = ("cartpole", "minatar")
OPERATIONS = ("add", "sample", "feedback")
SHARED = {"steps": 4, "streams": 16, "loop": 200}
# name in a worker's result -> heading
ROWS = {f"{name}_us": f"{name}, us" for name in OPERATIONS}
ROWS |= {f"{name}_cpu_us": f"{name}, CPU us" for name in OPERATIONS}
ROWS |= {"compile_s": "trace + compile s", "state_mib": "state MiB", "peak_mib": "peak memory MiB"}


def main() -> None:
    arguments = parse()
    python, sentence = peer.find(PEER, arguments.python)
    pythons = {report.OURS: sys.executable, report.PLAIN: sys.executable, PEER.name: python}
    jobs = [
        job
        for kind in arguments.only
        for items in arguments.items
        for capacity in arguments.capacities
        for job in turns.rounds(
            arguments.repeats, list(pythons), kind=kind, items=items, capacity=capacity
        )
        if pythons[job["variant"]]
    ]
    print(sentence, file=sys.stderr, flush=True)
    about = {"quick": arguments.quick, "kinds": KINDS, "shared": SHARED, "peer": sentence}
    records = turns.measure(
        jobs,
        lambda job: measure(job, str(pythons[job["variant"]]), arguments),
        line,
        lambda records: turns.save(
            arguments.output, "adding to a replay and drawing from it", about | {"records": records}
        ),
    )
    if arguments.quick:
        print("QUICK: small replays, one round. This shows that it works; it measures nothing.\n")
    print("\n".join([sentence, report.device(records), "", table(records)]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="default: all")
    add("--items", nargs="+", choices=ITEMS, default=list(ITEMS))
    add("--capacities", type=int, nargs="+", default=None, help="default: 100000 1000000")
    add("--repeats", type=int, default=None, help="rounds of interleaved processes; default: 5")
    add("--repetitions", type=int, default=None, help="of each loop in a process; default: 25")
    add("--quick", action="store_true", help="does it run? Its figures are no measurement")
    add("--python", metavar="PATH", help="an interpreter that has flashbax")
    add("--timeout", type=float, default=600.0, help="seconds until a worker counts as hung")
    add("--output", type=Path, metavar="FILE.json", help="written after every process")
    arguments = parser.parse_args()
    usual = (1, 2, [4096]) if arguments.quick else (5, 25, [100_000, 1_000_000])
    for name, value in zip(("repeats", "repetitions", "capacities"), usual, strict=True):
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if min([arguments.repeats, arguments.repetitions]) < 1 or min(arguments.capacities) < 1024:
        parser.error("--repeats and --repetitions must be at least 1, --capacities 1024.")
    return arguments


def measure(job: dict[str, Any], python: str, arguments: argparse.Namespace) -> dict[str, Any]:
    names = {report.OURS: "auto", report.PLAIN: "threefry2x32"}
    config = {k: job[k] for k in ("kind", "items", "capacity")}
    config |= KINDS[job["kind"]] | SHARED | {"generator": names.get(job["variant"], "")}
    options = {"config": config, "seed": job["round"], "repetitions": arguments.repetitions}
    ours = job["variant"] in names
    script = turns.WORKERS / f"{'jaxrl' if ours else PEER.name}_replay.py"
    return processes.run(python, script, options, ours, arguments.timeout)


# ---------------------------------------------------------------------------------- what to say


def line(record: dict[str, Any]) -> str:
    """One record for the progress display."""
    result = record["result"]
    name = f"{record['kind']}, {record['items']}, {record['capacity']}, {record['variant']}"
    if report.has_failed(record):
        return f"{name}: {result['failure']}"
    times = [f"{x} {result[f'{x}_us']:.3g} us" for x in OPERATIONS if f"{x}_us" in result]
    return f"{name}: {', '.join(times)}"


def table(records: list[dict[str, Any]]) -> str:
    """All sides, and the peer's over ours within a round: above 1, ours is faster or smaller."""
    sides = (report.OURS, report.PLAIN)
    rows = []
    cases = dict.fromkeys((r["kind"], r["items"], r["capacity"]) for r in records)
    for kind, items, capacity in cases:
        where = {"kind": kind, "items": items, "capacity": capacity}
        for figure, label in ROWS.items():
            a, b, theirs = (
                report.values(records, figure, variant=variant, **where)
                for variant in (*sides, PEER.name)
            )
            if a or theirs:
                both = [report.spread(list(x.values())) for x in (a, b, theirs)]
                quotients = [report.ratio(report.ratios(theirs, x)) for x in (a, b)]
                rows.append([kind, items, report.number(capacity), label, *both, *quotients])
    header = ["kind", "items", "capacity", "", *sides, PEER.name]
    header += [f"{PEER.name} / {side}" for side in sides]
    failures = [line(r) for r in records if report.has_failed(r)]
    return "\n".join([report.table(header, rows), *failures])


if __name__ == "__main__":
    main()
