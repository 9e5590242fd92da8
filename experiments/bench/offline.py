"""TD3+BC and IQL beside d3rlpy and the single files of JAX-CORL: gradient steps, and returns.

    git clone https://github.com/nissymori/JAX-CORL && git -C JAX-CORL checkout d747dd8
    python experiments/bench/offline.py [--only td3_bc iql] [--jax-corl JAX-CORL]
                                        [--output FILE.json]

All sides learn from one dataset, `medium-replay` of Pendulum with 20,000 steps, which is made here
and written for the others, with the same networks and settings. Every figure comes from a fresh
process, and the sides take turns. The clock starts when all is compiled.

JAX-CORL is not on a package index, so it is measured only where --jax-corl names its folder. Its
update functions run as they are, but for the layer normalization of their critics, which is off,
since the other sides have none, and `dones`, which are the data's terminations (its TD3+BC takes
truncations for terminations).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peer
import processes
import report
import turns

D3RLPY = peer.Peer("d3rlpy", "2.8.1", jax=False)
# What JAX-CORL imports beside JAX; its environments and its logging are not used.
CORL = peer.Peer("optax", "0.2.8", ("flax", "distrax", "omegaconf", "pydantic"))
JAX_CORL = "JAX-CORL"
SIZE = 20_000
SHARED = {
    "hidden": [256, 256],
    "batch_size": 256,
    "learning_rate": 3e-4,
    "rate": 0.005,
    "discount": 0.97,
    "steps": 10_000,  # gradient steps
    "episodes": 32,
}
CONFIGS = {
    "td3_bc": SHARED | {"alpha": 10.0},
    "iql": SHARED | {"expectile": 0.7, "temperature": 1.0},
}
ROWS = {"gradient_steps_per_s": "gradient steps/s", "final_return": "final return"}


def main() -> None:
    arguments = parse()
    pythons: dict[str, str | None] = {report.OURS: sys.executable}
    pythons[D3RLPY.name], sentence = peer.find(D3RLPY, arguments.python.get(D3RLPY.name))
    sentences = [sentence]
    if arguments.jax_corl is not None:
        folder = processes.REPOSITORY / ".venv-jax-corl"
        pythons[JAX_CORL], sentence = peer.find(CORL, arguments.python.get(JAX_CORL), folder)
        sentences.append(f"{JAX_CORL}: {sentence}")
    print("\n".join(sentences), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        export(data)
        jobs = [job for job in plan(arguments, list(pythons)) if pythons[job["variant"]]]
        about = {"peers": sentences, "configs": CONFIGS, "size": SIZE}

        def write(records: list[report.Record]) -> None:
            turns.save(arguments.output, "offline", about | {"records": records})

        run = lambda job: measure(job, str(pythons[job["variant"]]), data, arguments)
        records = turns.measure(jobs, run, line, write)
    print("\n" + report.offline(records, ROWS))
    if any(report.has_failed(record) for record in records):
        print("\nFailures:\n" + report.failures(records))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    add("--repeats", type=int, default=3, help="rounds of interleaved processes, a seed each")
    add("--jax-corl", type=Path, metavar="FOLDER", help="a clone of JAX-CORL")
    add("--python", action=peer.Interpreters, help="interpreters that have it")
    add("--timeout", type=float, default=1200.0, help="seconds until a worker counts as hung")
    add("--output", type=Path, metavar="FILE.json", help="written after every process")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1.")
    return arguments


def export(path: Path) -> None:
    """Write the dataset as named arrays [N]."""
    import numpy as np

    from jaxrl import envs
    from jaxrl.algorithms.offline.shared import making

    x = making.load(envs.make("pendulum"), "medium-replay", SIZE, 0).transitions
    np.savez(
        path,
        observations=x.observation,
        actions=x.action,
        rewards=x.reward,
        next_observations=x.next_observation,
        terminals=x.terminated,
        timeouts=x.truncated,
    )


def plan(arguments: argparse.Namespace, variants: list[str]) -> Iterator[turns.Job]:
    for name in arguments.only:
        yield from turns.rounds(arguments.repeats, variants, algorithm=name)


def measure(
    job: turns.Job, python: str, data: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    ours = job["variant"] == report.OURS
    name = job["variant"].lower().replace("-", "_")
    options = {
        "algorithm": job["algorithm"],
        "seed": job["round"],
        "config": CONFIGS[job["algorithm"]],
        "data": data,
    }
    if job["variant"] == JAX_CORL:
        options["folder"] = arguments.jax_corl.resolve()
    script = turns.WORKERS / f"{name}_offline.py"
    return processes.run(python, script, options, ours, arguments.timeout)


def line(record: report.Record) -> str:
    result = record["result"]
    said = result.get("failure") or ", ".join(
        f"{label} {report.number(result[name])}" for name, label in ROWS.items()
    )
    return f"{record['algorithm']}, {record['variant']}: {said}"


if __name__ == "__main__":
    main()
