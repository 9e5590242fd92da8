"""Rounds in which the sides take turns, each in processes of its own, and one file of what was
measured."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import processes
import report

from jaxrl.runtime import files
from jaxrl.runtime.git import commit

WORKERS = Path(__file__).resolve().parent / "workers"

Job = dict[str, Any]


def rounds(repeats: int, variants: Sequence[str], **job: Any) -> Iterator[Job]:
    """One round has each variant once, and every second round goes the other way, so that a drift
    of the machine favors nobody."""
    for turn in range(repeats):
        for variant in order(variants, turn):
            yield job | {"variant": variant, "round": turn}


def order(variants: Sequence[str], turn: int) -> Sequence[str]:
    return variants if turn % 2 == 0 else variants[::-1]


def measure(
    jobs: Sequence[Job],
    measure: Callable[[Job], report.Record],
    line: Callable[[report.Record], str],
    write: Callable[[list[report.Record]], None],
) -> list[report.Record]:
    """A record of each job, one after the other; after each `write` is given all so far."""
    records: list[report.Record] = []
    for count, job in enumerate(jobs, 1):
        records.append(job | {"result": report.derive(measure(job))})
        print(f"[{count}/{len(jobs)}] {line(records[-1])}", file=sys.stderr, flush=True)
        write(records)
    return records


def save(path: Path | None, benchmark: str, found: dict[str, Any]) -> None:
    """Write what was `found` so far over what was there, so that an interruption loses nothing;
    without a `path`, do nothing."""
    if path is None:
        return
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found = {"benchmark": benchmark, "date": date, "commit": commit(processes.REPOSITORY), **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, json.dumps(found, indent=1) + "\n")
