"""Files of runs: written whole or not at all, and read only if they are plain and well formed.

A folder may come from anyone, so it may hold links to files elsewhere, devices that never end, and
JSON that is not what jaxrl wrote.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Write a text so that a full disk or a kill leaves the file's old content, or the new one.

    A link is replaced, not followed. What is not a file, such as /dev/stdout, is written directly.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="replace")
        return
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8", errors="replace")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name under which a new content of `path` is to be written; it takes the place of
    `path` at the end, and is removed after an error."""
    new = path.with_name(f".{path.name}.new{path.suffix}")
    try:
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:  # which may not say what was written
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        new.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path | str) -> Iterator[None]:
    """Raise `UserError` for a file that cannot be written; `path` is named if the error names
    none."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"'{error.filename or path}' cannot be written: {reason}.") from error


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises `OSError` if it cannot be read, and `ValueError` if it is not a plain file or not JSON.
    """
    check_plain(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_int=parse_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_int(digits: str) -> int:
    """Return a whole number of a JSON file. Raises `ValueError` for one that no computer counts."""
    if len(digits) > 20:
        raise ValueError(f"it holds the number {digits[:20]}..., which is too large")
    return int(digits)


def check_plain(path: Path) -> None:
    """Raise `ValueError` if `path` is there and is neither a plain file nor a link to one."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is not a plain file")
