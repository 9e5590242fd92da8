"""PPO on CartPole against the size of a run: speed, memory and compilation, with exponents.

    python experiments/bench/scale.py [--axes environments seeds] [--output FILE.json]
                                      [--picture FILE.svg] [--quick]

One setting grows and the others stay: environments, seeds vmapped into one program, the width of
the two hidden layers, virtual devices that split a batch, and processes that do. Every figure comes
from a fresh process. An exponent is the slope of a line through the logarithms of the larger half
of the sizes, where what does not grow counts least: 1 is cost in proportion to size.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import ppo
import processes
import report
import turns

from jaxrl.evaluation.figures import add_legend, make_figure, palette, save_figure

STEPS = 32  # of each environment per update
AXES = {
    "environments": [16, 64, 256, 1_024, 4_096, 16_384, 65_536],
    "seeds": [1, 4, 16, 64, 256, 1_024],
    "width": [16, 64, 256, 1_024],
    "devices": [1, 2, 4, 8],
    "processes": [1, 2, 4],
}
QUICK = {name: sizes[:2] for name, sizes in AXES.items()}
SPREAD_ENVS, SPREAD_STEPS = 512, 1_000_000  # of runs on several devices or processes
ENVS = {"seeds": 4, "width": 64}


def main() -> None:
    arguments = parse()
    about = {"config": ppo.CONFIG | {"num_steps": STEPS}, "axes": AXES}

    def write(records: list[report.Record]) -> None:
        found = about | {"exponents": report.exponents(records), "records": records}
        turns.save(arguments.output, "scale of ppo cartpole", found)

    records = turns.measure(list(plan(arguments)), measure, line, write)
    print("\n" + report.scale(records))
    if any(report.has_failed(record) for record in records):
        print("\nFailures:\n" + report.failures(records))
    if arguments.picture:
        draw(records, arguments.picture)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--axes", nargs="+", choices=list(AXES), default=list(AXES))
    add("--quick", action="store_true", help="two sizes of each; its figures are no measurement")
    add("--output", type=Path, metavar="FILE.json", help="written after every process")
    add("--picture", type=Path, metavar="FILE.svg")
    return parser.parse_args()


def plan(arguments: argparse.Namespace) -> Iterator[turns.Job]:
    """Every process in turn."""
    for axis in arguments.axes:
        for size in (QUICK if arguments.quick else AXES)[axis]:
            yield {"axis": axis, "size": size, "variant": report.OURS}


# ---------------------------------------------------------------------------------- measuring


def measure(job: turns.Job) -> report.Record:
    if job["axis"] in ("devices", "processes"):
        return measure_spread(job["axis"], job["size"])
    return measure_alone(job["axis"], job["size"])


def measure_alone(axis: str, size: int) -> report.Record:
    """Measure a run in one process on one device, by the worker that is compared with peers."""
    hidden = [size, size] if axis == "width" else ppo.CONFIG["hidden"]
    envs = size if axis == "environments" else ENVS[axis]
    config = ppo.CONFIG | ppo.ENVIRONMENT | {"num_steps": STEPS, "hidden": hidden}
    options = {
        "task": "sweep" if axis == "seeds" else "speed",
        "envs": envs,
        "seeds": size if axis == "seeds" else 1,
        "steps": 4_096 if axis == "seeds" else 1,
        "minimum_updates": 4,
        "repetitions": 2,
        "seconds": 1.0,
        "episodes": 1,
        "config": config,
    }
    script = turns.WORKERS / "jaxrl_ppo.py"
    result = processes.run(sys.executable, script, options, ours=True, timeout=600.0)
    if "failure" in result:
        return result
    rate = result.get("median_steps_per_s", result.get("steps_per_s"))
    update = STEPS * envs * options["seeds"]
    return result | {"steps_per_s": rate, "update_s": update / rate}


def measure_spread(axis: str, size: int) -> report.Record:
    """Measure `jaxrl train` on virtual devices of one process, or on one device of each process."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        count = size if axis == "processes" else 1
        devices = size if axis == "devices" else 1
        command = [sys.executable, "-m", "jaxrl", "train", "ppo", "--env", "cartpole", "--quiet"]
        command += ["--out", folder, "--name", "run", "--evaluate-every", "-1"]
        command += ["--agent.num-envs", str(SPREAD_ENVS), "--agent.num-steps", str(STEPS)]
        command += ["--agent.num-shards", "8", "--steps", str(SPREAD_STEPS)]
        command += ["--mesh", f"batch={devices * count}"] if devices * count > 1 else []
        flags = f"--xla_force_host_platform_device_count={devices}"
        environment = processes.environment(ours=True) | {"XLA_FLAGS": flags}
        began, running = time.perf_counter(), []
        for i in range(count):
            group = ["--coordinator", f"localhost:{port}", "--processes", str(count)]
            own = [*group, "--process", str(i)] if count > 1 else []
            running.append(
                subprocess.Popen(
                    [*command, *own], env=environment, stderr=subprocess.PIPE, text=True
                )
            )
        said, peaks = [], []
        for one in running:
            assert one.stderr is not None
            said.append(one.stderr.read())
            _, status, used = os.wait4(one.pid, 0)
            one.returncode = os.waitstatus_to_exitcode(status)
            peaks.append(used.ru_maxrss / 2**10)
        if any(one.returncode for one in running):
            lines = "\n".join(said).strip().splitlines() or ["nothing was printed"]
            return {"failure": lines[-1][:300]}
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    rate = summary["steps_per_second"]
    return {
        "steps_per_s": rate,
        "update_s": STEPS * SPREAD_ENVS / rate,
        "peak_mib": sum(peaks),
        "compile_s": summary["seconds"]["compiling"] + summary["seconds"]["starting"],
        "process_s": time.perf_counter() - began,
    }


# ---------------------------------------------------------------------------------- what to say


def draw(records: Sequence[report.Record], path: Path) -> None:
    """Draw each measure over size, both logarithmic, with a line for each axis."""
    figure, all_axes = make_figure(None, "size", *report.MEASURES.values())
    axes_of_growth = list(dict.fromkeys(record["axis"] for record in records))
    colors = palette(axes_of_growth)
    for axes, name in zip(all_axes, report.MEASURES, strict=True):
        for axis in axes_of_growth:
            sizes, values = report.sizes_and_values(records, axis, name)
            slope = report.exponents(records)[axis]["update_s"]
            label = f"{axis} (time ^{slope:.2f})"
            axes.plot(sizes, values, marker="o", markersize=3, color=colors[axis], label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
    add_legend(figure, all_axes, "what grows")
    save_figure(figure, path)


def line(record: report.Record) -> str:
    result = record["result"]
    if "failure" in result:
        return f"{record['axis']} {record['size']}: {result['failure']}"
    rate = report.number(result["steps_per_s"])
    return f"{record['axis']} {record['size']}: {rate} steps/s, {result['peak_mib']:,.0f} MiB"


if __name__ == "__main__":
    main()
