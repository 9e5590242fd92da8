"""GRPO on tokens beside TRL and beside the machine's floor: answer tokens per second.

    python experiments/bench/tokens.py [--only w64-a32] [--repeats 3] [--quick]

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

PEER = peer.Peer("trl", "1.16.0", jax=False)
FLOOR = "floor"
SHARED = {"prompts": 32, "answers": 8, "prompt_length": 8, "vocabulary": 16, "kl_weight": 0.04}
CASES = {
    "w64-a32": {"width": 64, "layers": 2, "heads": 2, "answer_length": 32},
    "w64-a128": {"width": 64, "layers": 2, "heads": 2, "answer_length": 128},
    "w128-a64": {"width": 128, "layers": 4, "heads": 4, "answer_length": 64},
}
QUICK = {"prompts": 2, "answers": 4, "answer_length": 8}


def main() -> None:
    arguments = parse()
    python, sentence = peer.find(PEER, arguments.trl_python)
    pythons = {report.OURS: sys.executable, FLOOR: sys.executable, PEER.name: python}
    variants = [variant for variant, found in pythons.items() if found]
    jobs = [
        job
        for case in arguments.only
        for job in turns.rounds(arguments.repeats, variants, case=case)
    ]
    print(sentence, file=sys.stderr, flush=True)
    about = {"quick": arguments.quick, "cases": CASES, "shared": SHARED, "peer": sentence}
    records = turns.measure(
        jobs,
        lambda job: measure(job, str(pythons[job["variant"]]), arguments),
        line,
        lambda records: turns.save(arguments.output, "tokens", about | {"records": records}),
    )
    if arguments.quick:
        print("QUICK: small batches, one round. This shows that it works; it measures nothing.\n")
    print("\n".join([sentence, "", report.tokens(records)]))
    failures = [line(record) for record in records if report.has_failed(record)]
    if failures:
        print("\nFailures:\n" + "\n".join(failures))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(CASES), default=list(CASES), help="default: all")
    add("--repeats", type=int, default=None, help="rounds of interleaved processes; default: 3")
    add("--quick", action="store_true", help="does it run? Its figures are no measurement")
    add("--trl-python", metavar="PATH", help="an interpreter that has TRL")
    add("--timeout", type=float, default=300.0, help="seconds until a worker counts as hung")
    add("--output", type=Path, metavar="FILE.json", help="written after every process")
    arguments = parser.parse_args()
    if arguments.repeats is None:
        arguments.repeats = 1 if arguments.quick else 3
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1.")
    return arguments


def measure(job: dict[str, Any], python: str, arguments: argparse.Namespace) -> dict[str, Any]:
    config = SHARED | CASES[job["case"]] | (QUICK if arguments.quick else {})
    repetitions, seconds = (2, 0.0) if arguments.quick else (3, 3.0)
    options = {"config": config, "seed": job["round"]}
    options |= {"repetitions": repetitions, "seconds": seconds}
    script = turns.WORKERS / f"{job['variant']}_tokens.py"
    ours = job["variant"] != PEER.name
    return processes.run(python, script, options, ours, arguments.timeout)


def line(record: dict[str, Any]) -> str:
    """Return one record for the progress display."""
    result, name = record["result"], f"{record['case']}, {record['variant']}"
    if report.has_failed(record):
        return f"{name}: {result['failure']}"
    rates = [f"{label} {report.number(result[key])}" for key, label in report.TOKEN_ROWS.items()]
    return f"{name}: {'; '.join(rates)}"


if __name__ == "__main__":
    main()
