"""Claims side by side, each in a process of its own."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from experiments.evidence import records
from experiments.evidence.words import duration
from jaxrl.core.errors import UserError

NEEDS = 4 * 2**30  # bytes that a claim may need beside others
PATIENCE = 20.0  # seconds that an interrupted claim has to end


def jobs(option: str | None, large: bool) -> int:
    """Return how many claims run at once. Raises `UserError` unless it is a number from 1 on."""
    if option is not None:
        if not option.isdecimal() or int(option) < 1:
            raise UserError(f"--jobs is a whole number from 1 on, not '{option}'.")
        return int(option)
    if large:
        return 1
    return max(1, min(len(records.cores()) // 2, memory() // NEEDS))


def memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Children:
    """Processes of claims, `jobs` at once, each with its share of the cores.

    Their output is printed as it comes, behind their ids.
    """

    def __init__(self, script: str, jobs: int):
        self.script = script
        self.began: dict[str, float] = {}
        self.running: dict[str, subprocess.Popen] = {}
        self.shares: queue.Queue[list[int]] = queue.Queue()
        cores = records.cores()
        each = max(1, len(cores) // jobs)
        for i in range(jobs):
            share = [cores[k % len(cores)] for k in range(i * each, (i + 1) * each)]
            self.shares.put(share if jobs > 1 else cores)

    def run(self, id: str, options: Sequence[str]) -> int:
        """Run the claim `id` and return its exit code."""
        share = self.shares.get()
        self.began[id] = time.monotonic()
        command = [sys.executable, self.script, id, "--child", *options, "--cores"]
        with subprocess.Popen(
            [*command, ",".join(map(str, share))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # `stop` passes an interrupt on, once
        ) as process:
            self.running[id] = process
            for line in process.stdout or ():
                print(f"{id}: {line.rstrip()}", flush=True)
        del self.running[id]
        self.shares.put(share)
        return process.returncode

    def stop(self) -> None:
        for process in list(self.running.values()):
            process.send_signal(signal.SIGTERM)  # not ignored in the background
        for process in list(self.running.values()):
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def run_all(
    ids: Sequence[str], script: str, options: Sequence[str], jobs: int, seconds: Mapping[str, float]
) -> dict[str, int]:
    """Run `script ID --child` with `options` for each id, `jobs` side by side.

    Returns the exit code of each. Whenever one ends, and every minute, prints what is left of the
    `seconds` that each is expected to take.
    """
    if not ids:
        return {}
    children, codes, began = Children(script, jobs), {}, time.monotonic()

    def progress() -> None:
        now = time.monotonic()
        spent = {id: now - children.began[id] for id in list(children.running)}
        left = sum(max(0.0, seconds[id] - spent.get(id, 0.0)) for id in ids if id not in codes)
        print(f"[{len(codes)}/{len(ids)}] after {duration(now - began)}, about "
              f"{duration(left / jobs)} left", flush=True)  # fmt: skip

    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    waiting = {pool.submit(children.run, id, options): id for id in ids}
    try:
        progress()
        while waiting:
            done, _ = concurrent.futures.wait(waiting, 60, concurrent.futures.FIRST_COMPLETED)
            codes |= {waiting.pop(one): one.result() for one in done}
            progress()
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        children.stop()
        print("The same command resumes here.", flush=True)
        raise
    return codes
