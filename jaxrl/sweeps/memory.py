"""Memory that is free, and how many members of a run fit into it at once."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path

import jax

from jaxrl.core.types import Algorithm, Tree
from jaxrl.runtime.building import build, configure_jax, on_one_device, program
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.driver import Program
from jaxrl.runtime.members import Members, seed_members

USED = 0.8  # share of the free memory; evaluations and other unmeasured things need some too
PLENTY = 1000  # times the size of the states: enough for any program, so none is compiled
PROCESS = 2_000_000_000  # bytes of a process beside its program: Python, packages, the compiler


def fits(config: Experiment) -> bool:
    """Return whether all seeds of `config` can be trained at once.

    On several devices they are assumed to fit, since each device's share is not measured.
    """
    if config.seeds == 1 or config.devices > 1 or config.mesh:
        return True
    configure_jax(config)
    _, algorithm = build(config)
    members = seed_members(config)
    return width(config, algorithm, members, Display(config.quiet).say) == len(members)


def width(
    config: Experiment,
    algorithm: Algorithm,
    members: Members,
    say: Callable[[str], None],
    *,
    free: int | None = None,
) -> int:
    """Return how many of `members` to train at once: all if they fit.

    The memory that a program needs is read from the compiled program, which the run will find in
    the compilation cache. `say` is called before that compilation.

    free: bytes of memory for the program; by default what is free on this machine.
    """
    prog = program(on_one_device(config), algorithm, members)
    shapes = prog.shapes(members.keys(config.generator))
    free = available() if free is None else free
    if len(members) == 1 or free is None or PLENTY * size(shapes) < free:
        return len(members)
    say(f"Measuring the memory of {len(members)} members ...")
    copy = size(shapes) if jax.devices()[0].platform == "cpu" else 0  # a checkpoint's copy
    return even_chunk(len(members), prog.bytes(shapes) + copy, free)


def host_needed(config: Experiment, members: Members, *, on_gpu: bool = False) -> int:
    """Return the bytes of host memory that a process needs to train `members` at once.

    They are those of the compiled program, and of Python with its packages. A program that is
    small for certain is not compiled.

    on_gpu: whether the program lies in the memory of a GPU; the host holds a checkpoint's copy.
    """
    _, algorithm = build(config)
    prog = program(on_one_device(config), algorithm, members)
    shapes = prog.shapes(members.keys(config.generator))
    states = size(shapes)
    if on_gpu or not isinstance(prog, Program):
        needed = 2 * states
    elif PLENTY * states < PROCESS / 4:
        needed = PLENTY * states
    else:
        needed = prog.bytes(shapes) + states
    return PROCESS + int(needed / USED)


def even_chunk(members: int, needed: int, free: int) -> int:
    """Return how many of `members` to take at a time so that `free` bytes suffice; at least one.

    `needed`: bytes that all of them need together. The chunks are as even as possible.
    """
    most = max(1, min(members, int(members * USED * free / max(needed, 1))))
    return math.ceil(members / math.ceil(members / most))


def size(tree: Tree) -> int:
    """Return the bytes of all leaves; their shapes are enough."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def available() -> int | None:
    """Return the free bytes of the first device (on a CPU, of the host); None if unknown."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return host_bytes(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))


def total() -> int | None:
    """Return the bytes of memory of this machine, or of the container's limit; None if unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # "max" means no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found, default=None)


def host_bytes(meminfo: Path, cgroup: Path) -> int | None:
    """Return the bytes that Linux can still allocate, in a container within its limit."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].split()[0]))
    with contextlib.suppress(OSError, ValueError):  # "max" means no limit
        limit, used = ((cgroup / f"memory.{name}").read_text() for name in ("max", "current"))
        found.append(int(limit) - int(used))
    return min(found, default=None)
