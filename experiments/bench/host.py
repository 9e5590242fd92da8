"""SAC and PPO in Gymnasium's HalfCheetah-v5 beside Stable-Baselines3 and sbx: steps per second.

    pip install 'gymnasium[mujoco]'
    python experiments/bench/host.py [--only sac ppo] [--repeats 3] [--output FILE.json]

All sides step the same simulator on the host, so this compares what lies around it: acting, the
replay buffer, and gradient steps. Every figure comes from a fresh process, and the sides take
turns. SAC has one environment and one update per step; PPO has eight environments.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peer
import processes
import report
import turns

BEHIND = "jaxrl, 1 update behind"
ENVIRONMENT = "HalfCheetah-v5"
# sbx's SAC takes the same defaults as SB3's: two critics, Polyak rate 0.005, learned temperature.
SAC = {
    "num_envs": 1,
    "hidden": [256, 256],
    "learning_rate": 3e-4,
    "batch_size": 256,
    "capacity": 1_000_000,
    "warmup": 1_000,
    "warm": 1_500,  # steps before the clock starts, with the warm-up
    "steps": 3_000,  # steps that are timed
}
PPO = {
    "num_envs": 8,
    "num_steps": 256,
    "hidden": [64, 64],
    "learning_rate": 3e-4,
    "epochs": 10,
    "minibatches": 32,  # of 64 steps
    "warm": 4_096,
    "steps": 20_480,
}
CONFIGS = {"sac": SAC, "ppo": PPO}
TARGETS = {"sac": {peer.SBX.name: 1.5, peer.SB3.name: 3.0}, "ppo": {peer.SB3.name: 3.0}}
VARIANTS = (report.OURS, BEHIND, peer.SBX.name, peer.SB3.name)


def main() -> None:
    arguments = parse()
    if importlib.util.find_spec("mujoco") is None:
        sys.exit("This benchmark needs MuJoCo: pip install 'gymnasium[mujoco]'")
    python, sentence = peer.find(peer.SBX, arguments.sbx_python)  # it comes with SB3
    print(sentence, file=sys.stderr)
    jobs = [job for job in plan(arguments) if python or job["variant"] in (report.OURS, BEHIND)]
    about = {"peers": sentence, "environment": ENVIRONMENT, "configs": CONFIGS, "targets": TARGETS}

    def write(records: list[report.Record]) -> None:
        turns.save(arguments.output, "host", about | {"records": records})

    records = turns.measure(jobs, lambda job: measure(job, python or "", arguments), line, write)
    print("\n" + report.host(records))
    if any(report.has_failed(record) for record in records):
        print("\nFailures:\n" + report.failures(records))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    add("--repeats", type=int, default=3, help="rounds of interleaved processes")
    add("--sbx-python", metavar="PATH", help="an interpreter that has sbx, SB3 and MuJoCo")
    add("--timeout", type=float, default=900.0, help="seconds until a worker counts as hung")
    add("--output", type=Path, metavar="FILE.json", help="written after every process")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1.")
    return arguments


def plan(arguments: argparse.Namespace) -> Iterator[turns.Job]:
    """Every process in turn."""
    for name in arguments.only:
        yield from turns.rounds(arguments.repeats, VARIANTS, algorithm=name)


def measure(job: turns.Job, python: str, arguments: argparse.Namespace) -> dict[str, Any]:
    ours = job["variant"] in (report.OURS, BEHIND)
    options = {
        "algorithm": job["algorithm"],
        "environment": ENVIRONMENT,
        "seed": job["round"],
        "config": CONFIGS[job["algorithm"]],
    }
    if ours:
        options["staleness"] = int(job["variant"] == BEHIND)
    else:
        options["library"] = job["variant"]
    script = turns.WORKERS / ("jaxrl_host.py" if ours else "sb3_host.py")
    return processes.run(
        sys.executable if ours else python, script, options, ours, arguments.timeout
    )


def line(record: report.Record) -> str:
    result = record["result"]
    said = result.get("failure") or f"{report.number(result['steps_per_s'])} steps/s"
    return f"{record['algorithm']}, {record['variant']}: {said}"


if __name__ == "__main__":
    main()
