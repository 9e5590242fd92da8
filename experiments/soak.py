"""A long run with many saves and evaluations, whose memory, files and threads must not grow.

    python experiments/soak.py [--minutes 60] [--output FILE.json]

Trains `ppo/cartpole` in a process of its own, with a checkpoint and an evaluation every 20 updates,
and looks at the process every five seconds. Growth is what the second half of the looks shows: the
slope of the resident memory, times the duration, and the change of the largest numbers of open
files and of threads. Exits with 1 if memory grew by more than 5 % or one of the numbers grew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jaxrl

EVERY = 5.0  # seconds between two looks
UPDATE = 64 * 32  # environment steps
MOST_GROWTH = 0.05  # of the memory

Look = dict[str, float]  # seconds, rss_mib, files, threads


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        looks, rows, status = soak(folder, 60 * arguments.minutes)
    found = growth(looks) | {"rows": rows, "exit_status": status}
    print(json.dumps(found, indent=1))
    if arguments.output:
        about = {"version": jaxrl.__version__, "minutes": arguments.minutes}
        text = json.dumps(about | found | {"looks": looks}, indent=None)
        arguments.output.write_text(f"{text}\n")
    return int(not is_flat(found) or status != 128 + signal.SIGTERM)


def soak(folder: str, seconds: float) -> tuple[list[Look], int, int]:
    """Train for so many seconds; return what was seen, the rows of the log, and the exit status."""
    often = str(20 * UPDATE)
    command = [sys.executable, "-m", "jaxrl", "train", "ppo/cartpole", "--steps", "1e14"]
    command += ["--log-every", often, "--evaluate-every", often, "--checkpoint-every", often]
    command += ["--out", folder, "--name", "run", "--quiet"]
    process = subprocess.Popen(command)
    began, looks = time.monotonic(), []
    while time.monotonic() - began < seconds and process.poll() is None:
        time.sleep(EVERY)
        looks.append({"seconds": time.monotonic() - began} | look(process.pid))
    process.terminate()
    status = process.wait()
    rows = len(Path(folder, "run", "metrics.jsonl").read_text().splitlines())
    return looks, rows, status


def look(pid: int) -> Look:
    """Return the resident memory in MiB, the open files and the threads of a process."""
    lines = dict(x.split(":", 1) for x in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "rss_mib": int(lines["VmRSS"].split()[0]) / 2**10,
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(lines["Threads"]),
    }


def growth(looks: Sequence[Look]) -> dict[str, Any]:
    """Return what grew in the second half of the looks."""
    half = looks[len(looks) // 2 :]
    column = lambda name: np.asarray([x[name] for x in half])
    seconds, memory = column("seconds"), column("rss_mib")
    slope = np.polyfit(seconds, memory, 1)[0]
    peaks = lambda name: [int(x.max()) for x in np.array_split(column(name), 2)]
    return {
        "minutes": round(looks[-1]["seconds"] / 60, 1),
        "rss_mib": [round(memory[0], 1), round(memory[-1], 1)],
        "rss_growth": round(float(slope * (seconds[-1] - seconds[0]) / memory.mean()), 4),
        "files": peaks("files"),
        "threads": peaks("threads"),
    }


def is_flat(found: dict[str, Any]) -> bool:
    """Return whether nothing grew."""
    counts = (found["files"], found["threads"])
    return found["rss_growth"] <= MOST_GROWTH and all(last <= first for first, last in counts)


if __name__ == "__main__":
    sys.exit(main())
