"""How much memory there is, and how many members of a run fit into it side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import jax

from jaxrl.core.types import Algorithm, Tree
from jaxrl.runtime.building import build, prepare, program
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.host_program import HostProgram
from jaxrl.runtime.members import Members, seeds

USED = 0.8  # of what is free: evaluations, and what is not known of, need some as well
PLENTY = 1000  # times the states themselves: more than any program needs, so none is compiled


def fits(config: Experiment) -> bool:
    """Whether all seeds of `config` can be trained side by side. On several devices they are
    taken to: what each has to hold is not measured."""
    if config.seeds == 1 or config.devices > 1:
        return True
    prepare(config)
    _, algorithm = build(config)
    members = seeds(config)
    return width(config, algorithm, members, Display(config.quiet).say) == len(members)


def width(
    config: Experiment, algorithm: Algorithm, members: Members, say: Callable[[str], None]
) -> int:
    """How many of `members` are to be trained side by side: all if they fit.

    What the memory has to hold is read from the compiled program, which the run will find in the
    compilation cache; `say` is told before that is compiled.
    """
    prog = program(dataclasses.replace(config, devices=1), algorithm, members)
    if isinstance(prog, HostProgram):  # which has one member
        return 1
    shapes, free = prog.shapes(members.keys(config.generator)), available()
    if len(members) == 1 or free is None or PLENTY * size(shapes) < free:
        return len(members)
    say(f"Measuring the memory of {len(members)} members ...")
    copy = size(shapes) if jax.devices()[0].platform == "cpu" else 0  # of a checkpoint
    return fitting(len(members), prog.bytes(shapes) + copy, free)


def fitting(members: int, needed: int, free: int) -> int:
    """How many of `members`, which need `needed` bytes together, to take at a time, so that `free`
    bytes suffice, in chunks that are as even as can be; at least one."""
    most = max(1, min(members, int(members * USED * free / max(needed, 1))))
    return math.ceil(members / math.ceil(members / most))


def size(tree: Tree) -> int:
    """Bytes of all leaves, of which the shapes are enough."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def available() -> int | None:
    """Free bytes on the first device, for a CPU of the host; None where nobody says."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return host_bytes(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))


def host_bytes(meminfo: Path, cgroup: Path) -> int | None:
    """Bytes that Linux can still hand out, in a container only as much as that may have."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].split()[0]))
    with contextlib.suppress(OSError, ValueError):  # no limit is the word max
        limit, used = ((cgroup / f"memory.{name}").read_text() for name in ("max", "current"))
        found.append(int(limit) - int(used))
    return min(found, default=None)
