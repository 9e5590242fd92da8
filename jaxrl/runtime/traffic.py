"""Traffic between devices in a program, counted in what XLA has compiled.

Layouts of large models differ most in this (Mei et al., 2024, "ReaL: efficient RLHF training of
large language models with parameter reallocation", arXiv:2406.14088, estimates plans by it).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

SENT = {
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "all-gather": lambda size, n: size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1),
    "all-to-all": lambda size, n: size * (n - 1) / n,
    "collective-permute": lambda size, n: size,
}
"""Bytes that a device sends, by the bytes of its result and the number of devices in a group: those
of a ring, which sends no more than any other way (Patarasuk & Yuan, 2009, "Bandwidth optimal
all-reduce algorithms for clusters of workstations")."""

_BEGIN = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][a-z\-]*)\((.*)$")
_CALLED = re.compile(
    r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]* \{([^}]*)\}")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_DEVICES = re.compile(r"\bnum_partitions=(\d+)")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]")


@dataclasses.dataclass
class Traffic:
    """Bytes that each device sends to others, by the kind of operation.

    open_loops: how deeply loops of unknown length are nested around what is sent; the body of each
        is counted once.
    """

    bytes: dict[str, float] = dataclasses.field(default_factory=dict)
    open_loops: int = 0

    @property
    def total(self) -> float:
        return sum(self.bytes.values())

    def add(self, other: Traffic, times: float = 1.0) -> None:
        for kind, size in other.bytes.items():
            self.bytes[kind] = self.bytes.get(kind, 0.0) + times * size
        self.open_loops = max(self.open_loops, other.open_loops)


def count_traffic(text: str) -> Traffic:
    """Count what a compiled program sends, from its text (`compiled.as_text()`): loops of known
    length as often as they run, of branches the one that sends most."""
    bodies: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        if begin := _BEGIN.match(line):
            lines = bodies.setdefault(begin[2], [])
            entry = begin[2] if begin[1] else entry
        else:
            lines.append(line)
    found = _DEVICES.search(text)
    devices = int(found[1]) if found else 1
    known: dict[str, Traffic] = {}

    def of(name: str) -> Traffic:
        if name not in known:
            known[name] = Traffic()
            for line in bodies.get(name, ()):
                if instruction := _INSTRUCTION.match(line):
                    result, operation, rest = instruction.groups()
                    known[name].add(_traffic_of(result, operation, rest, devices, of))
        return known[name]

    return of(entry)


def _traffic_of(
    result: str, operation: str, rest: str, devices: int, of: Callable[[str], Traffic]
) -> Traffic:
    """Return what one instruction sends.

    result, operation, rest: the type of its result, its name, and what follows.
    devices: number of all devices. of: the traffic of a computation by its name.
    """
    kind = operation.removesuffix("-start")
    if kind in SENT:
        sizes = _sizes(result)
        if operation != kind and kind != "all-reduce":  # operands come first, and the results next
            count = rest.split(")", 1)[0].count("%")
            sizes = sizes[count : 2 * count]
        return Traffic({kind: SENT[kind](sum(sizes), _group_size(rest, devices))})
    found = Traffic()
    if branches := _BRANCHES.search(rest):
        names = [name.strip().lstrip("%") for name in branches[1].split(",")]
        found.add(max(map(of, names), key=lambda one: one.total))
    for name in _CALLED.findall(rest):
        found.add(of(name))
    if operation == "while" and found.total:
        if trips := _TRIPS.search(rest):
            once, found = found, Traffic()
            found.add(once, int(trips[1]))
        else:
            found = Traffic(found.bytes, found.open_loops + 1)
    return found


def _sizes(result: str) -> list[int]:
    """Return the bytes of the arrays in a type such as `(f32[8,4]{1,0}, pred[])`."""
    sizes = []
    for _, bits, shape in _ARRAY.findall(result):
        count = math.prod(map(int, filter(None, shape.split(","))))
        sizes.append(count * int(bits or 8) // 8)  # pred is a byte
    return sizes


def _group_size(rest: str, devices: int) -> int:
    """Return the number of devices among which an operation exchanges: all unless it says so."""
    if named := _NAMED.search(rest):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(axes[name]) for name in re.findall(r"'(\w+)'", named[2]))
    if listed := _LISTED.search(rest):
        return listed[1].count(",") + 1
    if counted := _COUNTED.search(rest):
        return int(counted[1])
    return devices
