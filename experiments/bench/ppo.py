"""PPO on CartPole against rejax: speed, compilation, memory, seed sweeps and learning.

    python experiments/bench/ppo.py [--quick] [--envs 4 64] [--output FILE.json]

Every figure comes from a fresh process, and the sides take turns. experiments/bench/README.md says
what is measured, and how the two sides were made to do the same work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peer
import processes
import report
import turns
from turns import Job, order, rounds

CONFIG = {
    "num_steps": 128,
    "epochs": 4,
    "minibatches": 4,
    "hidden": [64, 64],
    "activation": "tanh",
    "learning_rate": 3e-4,
    "discount": 0.99,
    "trace": 0.95,
    "clip": 0.2,
    "value_weight": 0.5,
    "entropy_weight": 0.01,
    "eps": 1e-5,  # of our Adam
}
ENVIRONMENT = {
    "environment": "cartpole",
    "peer_environment": "CartPole-v1",
    "environment_settings": {},
}
VARIANTS = {
    report.OURS: {"generator": "auto", "shuffle": "auto"},
    report.PEER: {},
    report.PLAIN: {"generator": "threefry2x32", "shuffle": "exact"},
}
SWEEP_ENVS = 4
CURVE_ENVS = (4, 64)
FULL = {"steps": 500_000, "sweep_steps": 65_536, "seconds": 2.0, "repetitions": 3, "points": 8}
FULL |= {"minimum_updates": 2, "minimum_updates_accelerator": 32, "episodes": 128}
QUICK = FULL | {"steps": 65_536, "sweep_steps": 16_384, "seconds": 0.3, "points": 4}
QUICK |= {"minimum_updates": 1, "minimum_updates_accelerator": 1, "episodes": 32}


def main() -> None:
    arguments = parse()
    settings = QUICK if arguments.quick else FULL
    python, sentence = peer.find(peer.REJAX, arguments.rejax_python, arguments.peer_folder)
    print(sentence, file=sys.stderr)
    pythons = {v: sys.executable for v in VARIANTS if v != report.PEER}
    if python:
        pythons[report.PEER] = python
    jobs = [job for job in plan(arguments) if job["variant"] in pythons]
    about = {
        "quick": arguments.quick,
        "config": CONFIG,
        "settings": settings,
        "variants": VARIANTS,
        "peer": sentence,
    }

    def write(records: list[report.Record]) -> None:
        found = about | {"targets": report.targets(records), "records": records}
        turns.save(arguments.output, "ppo cartpole against rejax", found)

    run = lambda job: measure(job, pythons[job["variant"]], settings, arguments.timeout)
    records = turns.measure(jobs, run, line, write)
    print_report(arguments, settings, sentence, records)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--envs", type=int, nargs="+", default=None, help="default: 4 64 1024 4096")
    add("--seeds", type=int, nargs="+", default=None, help="of the sweep; default: 1 8 32 128")
    add("--curve-seeds", type=int, default=None, help="of the learning curves; default: 5")
    add("--repeats", type=int, default=None, help="rounds of interleaved processes; default: 5")
    add("--only", nargs="+", choices=["speed", "sweep", "curve"], help="parts; default: all")
    add("--quick", action="store_true", help="does it run? Its figures are no measurement")
    add("--rejax-python", metavar="PATH", help="an interpreter that has rejax 0.1.3, gymnax<1.0")
    add("--peer-folder", type=Path, default=peer.REJAX.folder)
    add("--timeout", type=float, default=900.0, help="seconds until a worker counts as hung")
    add("--output", type=Path, metavar="FILE.json", help="written after every process")
    arguments = parser.parse_args()
    defaults = {"envs": [4, 64, 1024, 4096], "seeds": [1, 8, 32, 128], "curve_seeds": 5}
    defaults |= {"repeats": 5, "only": ["speed", "sweep", "curve"]}
    if arguments.quick:
        defaults |= {"envs": [4, 64], "seeds": [1, 8], "curve_seeds": 1, "repeats": 1}
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if min([*arguments.envs, *arguments.seeds, arguments.repeats, arguments.curve_seeds]) < 1:
        parser.error("--envs, --seeds, --curve-seeds and --repeats must be at least 1.")
    return arguments


# --------------------------------------------------------------------------------- what to run


def plan(arguments: argparse.Namespace) -> Iterator[Job]:
    """Every process in turn."""
    if "speed" in arguments.only:
        for envs in arguments.envs:
            yield from rounds(arguments.repeats, list(VARIANTS), task="speed", envs=envs, seeds=1)
    if "sweep" in arguments.only:
        # Round by round through all sizes: a seed's cost is compared between them too.
        for turn in range(min(arguments.repeats, 3)):
            for seeds in arguments.seeds:
                job = {"task": "sweep", "envs": SWEEP_ENVS, "seeds": seeds}
                for variant in order([report.OURS, report.PEER], turn):
                    yield job | {"variant": variant, "round": turn}
    if "curve" in arguments.only:
        for envs in CURVE_ENVS:
            yield from rounds(
                1, list(VARIANTS), task="curve", envs=envs, seeds=arguments.curve_seeds
            )


def measure(job: Job, python: str, settings: dict[str, Any], timeout: float) -> dict[str, Any]:
    ours = job["variant"] != report.PEER
    sweep = job["task"] == "sweep"
    options = {
        "task": job["task"],
        "envs": job["envs"],
        "seeds": job["seeds"],
        "seed": 1000 * job["round"],
        "steps": settings["sweep_steps" if sweep else "steps"],
        "repetitions": 1 if sweep else settings["repetitions"],
        "config": CONFIG | ENVIRONMENT,
    }
    options |= {k: settings[k] for k in ("seconds", "points", "episodes")}
    if job["task"] == "speed":
        names = ("minimum_updates", "minimum_updates_accelerator")
        options |= {name: settings[name] for name in names}
    script = turns.WORKERS / ("jaxrl_ppo.py" if ours else "rejax_ppo.py")
    return processes.run(python, script, options | VARIANTS[job["variant"]], ours, timeout)


# ---------------------------------------------------------------------------------- what to say


def line(record: dict[str, Any]) -> str:
    """One record for the progress display."""
    result = record["result"]
    name = f"{record['task']} {record['envs']} envs, {record['seeds']} seeds, {record['variant']}"
    if "failure" in result:
        return f"{name}: {result['failure']}"
    if record["task"] == "curve":
        return f"{name}: final returns {[round(c[-1]) for c in result['returns']]}"
    rate = result.get("median_steps_per_s", result.get("steps_per_s"))
    return f"{name}: {report.number(rate)} steps/s, compile {result['compile_s']:.2f} s"


def print_report(arguments, settings, sentence: str, records: list[dict[str, Any]]) -> None:
    if arguments.quick:
        print("QUICK: tiny runs, one round. This shows that it works; it measures nothing.\n")
    print(sentence + "\n" + report.device(records) + "\n")
    if "speed" in arguments.only:
        print(f"Speed: median (min-max) of {arguments.repeats} processes a side. Ratios of the")
        print("same round: median [95 % bootstrap interval; min-max below five rounds].")
        print(f"First result: of {settings['steps']} env steps, from the start of the process.\n")
        print(report.speed(records) + "\n")
    if "sweep" in arguments.only:
        print(f"Sweep: {settings['sweep_steps']} env steps a seed, {SWEEP_ENVS} envs, vmapped.\n")
        print(report.sweep(records) + "\n")
    if "curve" in arguments.only:
        print("Learning: mean return of complete episodes of the sampling policy, mean")
        print(f"over {settings['episodes']} episodes; median (min-max) over seeds.\n")
        print(report.curve(records) + "\n")
    failures = report.failures(records)
    if failures:
        print("Failures:\n" + failures + "\n")
    print(report.target_table(report.targets(records)))


if __name__ == "__main__":
    main()
