"""The files of a checkpoint: checksums, faults, and flushing to the disk."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UserError
from jaxrl.runtime.errors import first_line

CHECKSUMS = "checksums.json"


class CheckpointError(UserError):
    """A checkpoint that cannot be written or read: one sentence with its folder and the reason."""


def seal(folder: Path) -> None:
    """Write the checksums of all files in `folder`, and return once the disk has everything."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    (folder / CHECKSUMS).write_bytes(_checksums({name: _checksum(folder / name) for name in names}))
    for directory, _, names in os.walk(folder, topdown=False):
        for name in names:
            flush(Path(directory, name))
        flush(Path(directory))


def check_seal(folder: Path) -> None:
    """Raise `CheckpointError` unless every file is as it was when `folder` was sealed."""
    for file, checksum in _read_checksums(folder).items():
        fault = _fault(folder, file, checksum)
        if fault:
            raise _broken(folder, file, fault)


def _checksum(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"size": file.stat().st_size, "sha256": digest}


def _checksums(files: dict[str, Any]) -> bytes:
    """Return the content of `checksums.json`, which includes a checksum of itself."""
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return json.dumps({"files": files, "sha256": digest}).encode()


def _read_checksums(path: Path) -> dict[str, dict[str, Any]]:
    try:
        text = (path / CHECKSUMS).read_bytes()
    except FileNotFoundError:
        raise _broken(path, CHECKSUMS, "missing") from None
    except OSError as error:
        raise _broken(path, CHECKSUMS, f"unreadable ({first_line(error)})") from error
    if not text or text.count(b"{") > text.count(b"}"):
        raise _broken(path, CHECKSUMS, "truncated")
    try:
        files = json.loads(text)["files"]
        if text == _checksums(files) and all(map(_is_checksum, files.values())):
            return files
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # not by `seal`
        pass
    raise _broken(path, CHECKSUMS, "altered")


def _is_checksum(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("size")) is int


def _fault(folder: Path, name: str, checksum: dict[str, Any]) -> str | None:
    """Return what is wrong with a file, in a word, or None."""
    file = folder / name
    try:
        if not file.resolve().is_relative_to(folder.resolve()):
            return "elsewhere"
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            return "not a plain file"
        size = found.st_size
        if size < checksum["size"]:
            return "truncated"
        if size > checksum["size"] or _checksum(file) != checksum:
            return "altered"
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError) as error:
        return f"unreadable ({first_line(error)})"
    return None


def _broken(path: Path, file: str, fault: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint {path} is damaged: its file {file} is {fault}.")


def flush(path: Path) -> None:
    """Wait until the disk has the file or folder at `path`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
