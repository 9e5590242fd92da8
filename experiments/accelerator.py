"""Measure and test jaxrl on this machine's accelerator, as one record to send back.

    python experiments/accelerator.py [--output accelerator.json] [--minutes 10] [--quick] [--cpu]

Each part is a process of its own: the benchmark (PPO beside rejax), a short training run of the
first configuration in every folder of configs/, and the tests. That takes hours; `--minutes` runs
what matters most and ends in time: one round of the benchmark, few configurations, and the tests of
losses. The record is written after each part; parts that it holds are not run again.
`make accelerator` first installs what is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

import jaxrl
from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from jaxrl.runtime.configuration import Experiment

ROOT = Path(__file__).resolve().parents[1]
SHARE = 10  # one in so many of a configuration's steps is trained
PART_SECONDS = 3 * 3600.0
SEEDS = 8
TEST_WORKERS = max(2, (os.cpu_count() or 2) * 3 // 4)
# With `--minutes`: sizes that fill an accelerator, and a configuration of each kind of loop.
SHORT_BENCHMARK = ("--only", "speed", "--envs", "1024", "16384", "--repeats", "1")
SHORT_CONFIGS = (
    "ppo/cartpole",
    "pqn/cartpole",
    "dqn/catch",
    "sac/pendulum",
    "grpo/addition",
    "muzero/cartpole",
    "dreamer/catch",
    "dpo/judged_words",
)
SHORT_TESTS = ("tests/losses", "tests/core")

# A folder for its files, the seconds that it may take -> its entry in the record.
Part = Callable[[Path, float], dict[str, Any]]


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    record = read(arguments.output)
    here = device()
    if here["platform"] == "cpu" and not arguments.cpu:
        raise UserError("JAX finds no accelerator here, only a CPU; add --cpu to run anyway.")
    if record.setdefault("device", here) != here:
        raise UserError(
            f"'{arguments.output}' is the record of {record['device']['kind']}; this is "
            f"{here['kind']}, so name another --output."
        )
    record |= {"versions": versions(), "commit": commit()}
    done = record.setdefault("parts", {})
    ends = time.monotonic() + (arguments.minutes * 60 if arguments.minutes else float("inf"))
    for name, part in parts(arguments.quick, bool(arguments.minutes)).items():
        left = min(PART_SECONDS, ends - time.monotonic())
        if done.get(name, {}).get("exit_status") == 0:
            continue
        if left <= 0:
            print(f"{name} did not fit into {arguments.minutes:g} minutes.")
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            done[name] = part(Path(folder), left) | {
                "seconds": round(time.perf_counter() - began, 1)
            }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    failed = [name for name, part in done.items() if part["exit_status"] != 0]
    print(f"{len(done) - len(failed)} of {len(done)} parts succeeded; {arguments.output}")
    for name in failed:
        print(f"{name}: {done[name]['last_line']}")
    return 1 if failed else 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("accelerator.json"), help="file of the record")
    add("--minutes", type=float, help="run only what matters most, and end in time")
    add("--quick", action="store_true", help="only check that everything runs; measures nothing")
    add("--cpu", action="store_true", help="also run if there is only a CPU")
    return parser.parse_args(argv)


def read(path: Path) -> dict[str, Any]:
    """Return the record so far. Raises `UserError` for a file that is not a record."""
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise UserError(f"'{path}' is not a record; name another --output.")
    return record


# ---------------------------------------------------------------------------------- the parts


def parts(quick: bool, short: bool) -> dict[str, Part]:
    bench = [
        "experiments/bench/ppo.py",
        *(["--quick"] if quick else SHORT_BENCHMARK if short else ()),
    ]
    chosen = SHORT_TESTS if short else ("tests/core",) if quick else ()
    tests = ["-m", "pytest", "-n", str(TEST_WORKERS), *chosen]
    folders = sorted((ROOT / "configs").iterdir())
    configs = [ROOT / f"configs/{name}.yaml" for name in SHORT_CONFIGS]
    found: dict[str, Part] = {"benchmark": lambda folder, left: run_benchmark(bench, folder, left)}
    for config in configs if short else (min(folder.glob("*.yaml")) for folder in folders):
        name = config.relative_to(ROOT).as_posix()
        found[name] = lambda folder, left, config=config: train_briefly(config, folder, quick, left)
    return found | {"tests": lambda _, left: run_tests(tests, left)}


def run_benchmark(command: Sequence[str], folder: Path, left: float) -> dict[str, Any]:
    output = folder / "ppo.json"
    ended = run([*command, "--output", str(output)], left)
    del ended["output"]
    return ended | ({"result": json.loads(output.read_text())} if output.exists() else {})


def train_briefly(config: Path, folder: Path, quick: bool, left: float) -> dict[str, Any]:
    """Train a short run, and return its summary."""
    steps = yaml.safe_load(config.read_text()).get("steps", Experiment.steps)
    steps = 1 if quick else max(1, steps // SHARE)
    seeds = 1 if quick else SEEDS
    options = {"steps": steps, "seeds": seeds, "out": folder, "name": "run"}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    ended = run(["-m", "jaxrl", "train", str(config), *flags, "--quiet"], left)
    del ended["output"]
    summary = folder / "run" / "summary.json"
    found = json.loads(summary.read_text()) if summary.exists() else {}
    return ended | {k: found.get(k) for k in ("steps", "steps_per_second", "returns", "seconds")}


def run_tests(command: Sequence[str], left: float) -> dict[str, Any]:
    """Run the tests on the accelerator, and return which failed."""
    ended = run(command, left)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.pop("output"), re.MULTILINE)
    return ended | {"failed": failed}


def run(command: Sequence[str], seconds: float = PART_SECONDS) -> dict[str, Any]:
    """Run Python at the root of the repository, without reserving the accelerator's memory."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": path}
    started = [sys.executable, *command]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # A session of its own, so that what it started ends with it.
    with subprocess.Popen(started, cwd=ROOT, env=env, start_new_session=True, **pipe) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            line = f"not done after {seconds:.0f} s"
            return {"exit_status": -1, "last_line": line, "output": output}
    lines = output.strip().splitlines() or [""]
    return {"exit_status": process.returncode, "last_line": lines[-1], "output": output}


# ------------------------------------------------------------------------------- the machine


def device() -> dict[str, Any]:
    """Return the device of JAX, asked in another process since this one would keep its memory."""
    code = (
        "import jax, json; d = jax.devices()\n"
        "print(json.dumps(dict(platform=d[0].platform, kind=d[0].device_kind, count=len(d))))"
    )
    ended = run(["-c", code])
    if ended["exit_status"]:
        raise UserError(f"JAX does not start here: {ended['last_line']}")
    return json.loads(ended["last_line"])


def versions() -> dict[str, str]:
    names = ("jax", "jaxlib", "flax", "optax", "numpy")
    own = {"jaxrl": jaxrl.__version__, "python": platform.python_version()}
    return {name: metadata.version(name) for name in names} | own


def commit() -> str:
    ended = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True, capture_output=True
    )
    return ended.stdout.strip() or "unknown"


if __name__ == "__main__":
    command_line.run(main)
