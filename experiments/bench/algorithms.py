"""DQN, SAC and PQN beside rejax and Stable-Baselines3: speed, compilation, memory and learning; and
learning beside rejax in environments of gymnax and navix that both sides play.

    python experiments/bench/algorithms.py [--only dqn sac pqn] [--quick] [--output FILE.json]
    python experiments/bench/algorithms.py --tasks environments --output FILE.json

Every figure comes from a fresh process, and the sides take turns. experiments/bench/README.md says
what is measured, and how the sides were made to do the same work.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import peer
import ppo
import processes
import report
import turns

# Settings have our names; the workers of the peers say what they are called there.
REPLAYED = {
    "num_steps": 1,
    "warmup": 1000,
    "hidden": [64, 64],
    "activation": "relu",
    "learning_rate": 1e-3,
    "discount": 0.99,
    "rate": 0.02,
}
SAC = REPLAYED | {"updates": 1, "batch_size": 256, "capacity": 10_000}


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One algorithm and its environment on every side.

    steps: of a timed run and of a learning curve, whole windows of num_envs * num_steps.
    targets: peer -> how many times its env-steps per second ours are to be.
    name: of the algorithm, where its entry has another.
    """

    environment: str
    peer_environment: str
    num_envs: int
    settings: dict[str, Any]
    steps: int
    curve_steps: int
    targets: dict[str, float]
    environment_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""


ALGORITHMS = {
    "dqn": Algorithm(
        "cartpole",
        "CartPole-v1",
        10,
        REPLAYED | {"updates": 5, "batch_size": 100, "capacity": 50_000, "epsilon_steps": 50_000.0},
        steps=20_000,
        curve_steps=80_000,
        targets={peer.REJAX.name: 2.5, peer.SB3.name: 5.0},
    ),
    "sac": Algorithm(
        "pendulum",
        "Pendulum-v1",
        1,
        SAC,
        steps=5_000,
        curve_steps=10_000,
        targets={peer.REJAX.name: 1.5, peer.SB3.name: 5.0},
    ),
    "pqn": Algorithm(
        "minatar_breakout",
        "Breakout-MinAtar",
        128,
        {
            "num_steps": 32,
            "epochs": 2,
            "minibatches": 32,
            "channels": [16],
            "hidden": [128],
            "activation": "relu",
            "learning_rate": 5e-4,
            "discount": 0.99,
            "q_lambda": 0.65,
            "epsilon_steps": 1_000_000.0,
        },
        steps=65_536,
        curve_steps=1_048_576,
        targets={peer.REJAX.name: 1.5},
        environment_settings={
            "minimal_actions": True,
            "time_limit": 1000,
            "sticky_probability": 0.0,
        },
    ),
}

CARTPOLE = ("gymnax/CartPole-v1", "CartPole-v1")
PENDULUM = ("gymnax/Pendulum-v1", "Pendulum-v1")
EMPTY = ("navix/Navix-Empty-Random-6x6-v0", "navix/Navix-Empty-Random-6x6-v0")
# In that room, and in 20,000 and 12,000 steps here, DQN and discrete SAC learn on neither side.
SMALL = ("navix/Navix-Empty-5x5-v0", "navix/Navix-Empty-5x5-v0")
# navix's own limits for rooms of these sizes, which they have in rejax.
LIMIT, SMALL_LIMIT = {"max_steps": 144}, {"max_steps": 100}
PPO = ppo.CONFIG | {"eps": 1e-8}
DISCRETE = REPLAYED | {"updates": 5, "batch_size": 100, "capacity": 10_000}
EXPLORING = DISCRETE | {"epsilon_steps": 10_000.0}
CAUTIOUS = DISCRETE | {"target_entropy": 0.5}


def environment(
    name: str, pair: tuple[str, str], num_envs: int, settings: dict, steps: int, **options
):
    """Return what both sides train in the same package's environment, for its learning alone."""
    return Algorithm(*pair, num_envs, settings, steps, steps, {}, options, name)


# Ours plays them through its adapters, in which the packages' own automatic resets do not run.
PEER_ENVIRONMENTS = {
    "ppo-gymnax": environment("ppo", CARTPOLE, 16, PPO, 16 * 128 * 80),
    "dqn-gymnax": environment("dqn", CARTPOLE, 10, EXPLORING, 24_000),
    "discrete-sac-gymnax": environment("discrete_sac", CARTPOLE, 10, CAUTIOUS, 12_000),
    "sac-gymnax": environment("sac", PENDULUM, 1, SAC, 10_000),
    "ppo-navix": environment("ppo", EMPTY, 16, PPO, 16 * 128 * 40, **LIMIT),
    "dqn-navix": environment("dqn", SMALL, 10, EXPLORING, 80_000, **SMALL_LIMIT),
    "discrete-sac-navix": environment("discrete_sac", SMALL, 10, CAUTIOUS, 48_000, **SMALL_LIMIT),
}
ALL = ALGORITHMS | PEER_ENVIRONMENTS
PEERS = (peer.REJAX, peer.SB3)
SIDES = {report.OURS: "jaxrl", peer.REJAX.name: "rejax", peer.SB3.name: "sb3"}
# Stable-Baselines3 compiles nothing, and what the clock needs takes memory beside it.
ROWS_WITHOUT_COMPILER = ("median_steps_per_s", "median_cpu_us", "final_return")
LEARNING = (report.OURS, peer.REJAX.name)
POINTS = 8
EPISODES = 64
QUICK_SHARE = 4  # of the steps; more than the warm-up


def main() -> None:
    arguments = parse()
    pythons: dict[str, str | None] = {report.OURS: sys.executable}
    sentences = []
    planned = {job["variant"] for job in plan(arguments)}
    for library in PEERS:
        if library.name in planned:
            pythons[library.name], said = peer.find(library, arguments.python.get(library.name))
            sentences.append(said)
    print("\n".join(sentences), file=sys.stderr, flush=True)
    jobs = [job for job in plan(arguments) if pythons.get(job["variant"])]
    algorithms = {name: dataclasses.asdict(ALL[name]) for name in arguments.only}
    about = {"quick": arguments.quick, "algorithms": algorithms, "peers": sentences}

    def write(records: list[report.Record]) -> None:
        found = about | {"targets": targets(records), "records": records}
        turns.save(arguments.output, "algorithms beside other libraries", found)

    run = lambda job: measure(job, str(pythons[job["variant"]]), arguments)
    records = turns.measure(jobs, run, line, write)
    if arguments.quick:
        print("QUICK: tiny runs, one round. This shows that it works; it measures nothing.\n")
    print("\n".join([*sentences, report.device(records), ""]))
    print_report(records)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(ALL), help="default: all of the tasks")
    add(
        "--tasks", nargs="+", choices=["speed", "curve", "environments"], default=["speed", "curve"]
    )
    add("--repeats", type=int, default=None, help="rounds of interleaved processes; default: 5")
    add("--seeds", type=int, default=None, help="of the learning curves; default: 10")
    add("--quick", action="store_true", help="does it run? Its figures are no measurement")
    add("--python", action=peer.Interpreters, help="interpreters that have it")
    add("--timeout", type=float, default=3600.0, help="seconds until a worker counts as hung")
    add("--output", type=Path, metavar="FILE.json", help="written after every process")
    arguments = parser.parse_args()
    if arguments.only is None:
        chosen = (ALGORITHMS, {"speed", "curve"}), (PEER_ENVIRONMENTS, {"environments"})
        arguments.only = [x for table, of in chosen if of & set(arguments.tasks) for x in table]
    for name, full, quick in (("repeats", 5, 1), ("seeds", 10, 1)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else full)
    if min(arguments.repeats, arguments.seeds) < 1:
        parser.error("--repeats and --seeds must be at least 1.")
    if not list(plan(arguments)):
        parser.error(f"{', '.join(arguments.only)}: nothing of it is in --tasks.")
    return arguments


def plan(arguments: argparse.Namespace):
    """Every process in turn."""
    for name in arguments.only:
        if "speed" in arguments.tasks and name in ALGORITHMS:
            sides = [report.OURS, *ALGORITHMS[name].targets]
            yield from turns.rounds(arguments.repeats, sides, task="speed", algorithm=name)
        if ("environments" if name in PEER_ENVIRONMENTS else "curve") in arguments.tasks:
            yield from turns.rounds(1, LEARNING, task="curve", algorithm=name)


def measure(job: turns.Job, python: str, arguments: argparse.Namespace) -> report.Record:
    algorithm = ALL[job["algorithm"]]
    name = algorithm.name or job["algorithm"]
    curve = job["task"] == "curve"
    steps = algorithm.curve_steps if curve else algorithm.steps
    options = {
        "task": job["task"],
        "envs": algorithm.num_envs,
        "seeds": arguments.seeds,
        "seed": 1000 * job["round"],
        "steps": steps // QUICK_SHARE if arguments.quick else steps,
        "repetitions": 1 if arguments.quick else 2,
        "seconds": 0.1 if arguments.quick else 1.0,
        "points": 2 if arguments.quick else POINTS,
        "episodes": EPISODES,
        "config": algorithm.settings | dataclasses.asdict(algorithm) | {"algorithm": name},
    }
    kind = "ppo" if name == "ppo" else "algorithms"
    script = turns.WORKERS / f"{SIDES[job['variant']]}_{kind}.py"
    ours = job["variant"] == report.OURS
    return processes.run(python, script, options, ours, arguments.timeout)


# ---------------------------------------------------------------------------------- what to say


def line(record: report.Record) -> str:
    """One record for the progress display."""
    result = record["result"]
    name = f"{record['task']} {record['algorithm']}, {record['variant']}"
    if report.has_failed(record):
        return f"{name}: {result['failure']}"
    if record["task"] == "curve":
        return f"{name}: final returns {[round(c[-1]) for c in result['returns']]}"
    compiled = f", compile {result['compile_s']:.2f} s" if "compile_s" in result else ""
    return f"{name}: {report.number(result['median_steps_per_s'])} steps/s{compiled}"


def targets(records: list[report.Record]) -> list[report.Record]:
    """Return each target, what was measured, and whether it is met (None if not measured)."""
    found = []
    for name, algorithm in ALGORITHMS.items():
        where = {"task": "speed", "algorithm": name}
        for other, target in algorithm.targets.items():
            label = f"env-steps/s, {name}, {report.OURS} / {other}"
            quotients = report.against(records, "median_steps_per_s", other, **where)
            found.append(report.verdict(label, ">=", target, quotients))
        label = f"{report.SPEED_ROWS['compile_s']}, {name}, {report.OURS} / {peer.REJAX.name}"
        quotients = report.against(records, "compile_s", peer.REJAX.name, **where)
        found.append(report.verdict(label, "<=", 1.0, quotients))
    return found


def print_report(records: list[report.Record]) -> None:
    speed = [r for r in records if r["task"] == "speed"]
    for library in PEERS:
        rows = report.SPEED_ROWS
        if library == peer.SB3:
            rows = {name: rows[name] for name in ROWS_WITHOUT_COMPILER}
        both = [r for r in speed if r["variant"] in (report.OURS, library.name)]
        print(report.beside(both, rows, ("algorithm",), report.NO_RATIO) + "\n")
    print("Learning: mean return of complete episodes of the greedy policy (of PPO: the sampling")
    print(f"one), mean over {EPISODES} episodes; median (min-max) over seeds.\n")
    print(report.curve(records, "algorithm") + "\n")
    print("Means over seeds [95 % of Student's t within the range of the seeds], and how probably")
    print(f"a seed of ours is above one of {peer.REJAX.name} [95 % bootstrap].\n")
    print(report.learning(records, "algorithm") + "\n")
    failures = [line(r) for r in records if report.has_failed(r)]
    print("\n".join([*failures, report.target_table(targets(records))]))


if __name__ == "__main__":
    main()
