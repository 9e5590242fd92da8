"""Whose turn it is: CI runs some of the slow checks, others where the code is in another state;
`make test-all` runs all."""

from __future__ import annotations

import functools
import zlib
from pathlib import Path

import jaxrl


@functools.cache
def state() -> int:
    """A number for what all files of the package hold."""
    files = sorted(Path(jaxrl.__file__).parent.rglob("*.py"))
    return functools.reduce(lambda crc, path: zlib.crc32(path.read_bytes(), crc), files, 0)


def mark(name: str, one_in: int) -> str:
    """`slow`, which CI runs, for about one in so many names; `rest` for the others."""
    return "rest" if (zlib.crc32(name.encode()) + state()) % one_in else "slow"
