"""Environment steps per second of random actions beside other libraries' same environments.

    python experiments/bench/envs.py [--only cartpole pendulum] [--copies 1024 8192] [--quick]

Every figure comes from a fresh process, and the sides take turns. experiments/bench/README.md says
what is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import peer
import processes
import report
import turns

from jaxrl.envs import registry

# name in a worker's result -> heading
ROWS = {
    "median_steps_per_s": "env-steps/s",
    "median_cpu_us": "CPU us/step",
    "compile_s": "trace + compile s",
    "peak_mib": "peak memory MiB",
    "final_return": "steps to an end",
}
NO_RATIO = {"final_return"}


@dataclasses.dataclass(frozen=True)
class Pair:
    """One environment on both sides. env_steps: steps of one run, all copies together, at least."""

    ours: str
    peer: peer.Peer
    theirs: str
    env_steps: int
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    their_settings: dict[str, Any] = dataclasses.field(default_factory=dict)


DISCRETE = {"actions": "discrete"}
VIEW = {"observation_fn": "symbolic_first_person"}
PAIRS = {
    "cartpole": Pair("cartpole", peer.GYMNAX, "CartPole-v1", 4_000_000),
    "pendulum": Pair("pendulum", peer.GYMNAX, "Pendulum-v1", 4_000_000),
    "breakout": Pair("minatar_breakout", peer.GYMNAX, "Breakout-MinAtar", 1_000_000),
    "empty": Pair("empty", peer.XMINIGRID, "MiniGrid-Empty-8x8", 1_000_000, {"size": 8}),
    "empty_navix": Pair("empty", peer.NAVIX, "Navix-Empty-8x8-v0", 1_000_000, {"size": 8}, VIEW),
    "empty_whole": Pair(
        "empty", peer.NAVIX, "Navix-Empty-8x8-v0", 1_000_000, {"size": 8, "full": True}
    ),
    "cheetah": Pair(
        "cheetah", peer.BRAX, "halfcheetah", 65_536, their_settings={"episode_length": 1000}
    ),
    "tic_tac_toe": Pair("tic_tac_toe", peer.PGX, "tic_tac_toe", 1_000_000),
    "kuhn_poker": Pair("kuhn_poker", peer.PGX, "kuhn_poker", 4_000_000),
    "leduc_poker": Pair("leduc_poker", peer.PGX, "leduc_holdem", 1_000_000),
    "spread": Pair("simple_spread", peer.JAXMARL, "MPE_simple_spread_v3", 500_000, DISCRETE),
    "tag": Pair("simple_tag", peer.JAXMARL, "MPE_simple_tag_v3", 500_000, DISCRETE),
}
QUICK_SHARE = 64  # of the env_steps


def main() -> None:
    arguments = parse()
    known = [name for name in arguments.only if PAIRS[name].ours in registry.names()]
    sentences = [
        f"{name} is skipped: there is no environment '{PAIRS[name].ours}' here."
        for name in arguments.only
        if name not in known
    ]
    pythons: dict[str, str | None] = {report.OURS: sys.executable}
    for library in dict.fromkeys(PAIRS[name].peer for name in known):
        given = arguments.python.get(library.name)
        pythons[library.name], sentence = peer.find(library, given)
        sentences.append(sentence)
    print("\n".join(sentences), file=sys.stderr, flush=True)
    jobs = [
        job
        for name in known
        for copies in arguments.copies
        for job in turns.rounds(
            arguments.repeats, [report.OURS, PAIRS[name].peer.name], pair=name, copies=copies
        )
        if pythons[job["variant"]]
    ]
    pairs = {name: dataclasses.asdict(PAIRS[name]) for name in arguments.only}
    about = {"quick": arguments.quick, "pairs": pairs, "peers": sentences}
    write = lambda records: turns.save(
        arguments.output, "random steps of environments", about | {"records": records}
    )
    run = lambda job: measure(job, str(pythons[job["variant"]]), arguments)
    records = turns.measure(jobs, run, line, write)
    if arguments.quick:
        print("QUICK: tiny runs, one round. This shows that it works; it measures nothing.\n")
    table = report.beside(records, ROWS, ("pair", "copies"), NO_RATIO)
    failures = [line(r) for r in records if report.has_failed(r)]
    print("\n".join([*sentences, report.device(records), "", table, *failures]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(PAIRS), default=list(PAIRS), help="pairs; default: all")
    add("--copies", type=int, nargs="+", default=[1024, 8192])
    add("--repeats", type=int, default=None, help="rounds of interleaved processes; default: 5")
    add("--seconds", type=float, default=0.5, help="of one repetition, at least; three a process")
    add("--quick", action="store_true", help="does it run? Its figures are no measurement")
    add("--python", action=peer.Interpreters, help="interpreters that have it")
    add("--timeout", type=float, default=900.0, help="seconds until a worker counts as hung")
    add("--output", type=Path, metavar="FILE.json", help="written after every process")
    arguments = parser.parse_args()
    if arguments.repeats is None:
        arguments.repeats = 1 if arguments.quick else 5
    if min([*arguments.copies, arguments.repeats]) < 1:
        parser.error("--copies and --repeats must be at least 1.")
    return arguments


def measure(job: dict[str, Any], python: str, arguments: argparse.Namespace) -> dict[str, Any]:
    pair = PAIRS[job["pair"]]
    ours = job["variant"] == report.OURS
    config = {k: v for k, v in dataclasses.asdict(pair).items() if k != "peer"}
    options = {
        "task": "speed",
        "envs": job["copies"],
        "seed": 1000 * job["round"],
        "steps": pair.env_steps // (QUICK_SHARE if arguments.quick else 1),
        "repetitions": 3,
        "seconds": 0.1 if arguments.quick else arguments.seconds,
        "config": config | {"num_steps": 1},
    }
    script = turns.WORKERS / ("jaxrl_envs.py" if ours else f"{pair.peer.name}_envs.py")
    return processes.run(python, script, options, ours, arguments.timeout)


# ---------------------------------------------------------------------------------- what to say


def line(record: dict[str, Any]) -> str:
    """One record for the progress display."""
    result = record["result"]
    name = f"{record['pair']}, {record['copies']} copies, {record['variant']}"
    if report.has_failed(record):
        return f"{name}: {result['failure']}"
    rate = report.number(result["median_steps_per_s"])
    return f"{name}: {rate} steps/s, compile {result['compile_s']:.2f} s"


if __name__ == "__main__":
    main()
