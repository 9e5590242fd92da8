"""What ends a run early: an interrupt, too little memory, a disk that is full or gone."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from jaxrl.runtime import checkpoints, run_folder
from jaxrl.runtime.checkpoint_files import CheckpointError, first_line
from jaxrl.runtime.command_line import Stopped, out_of_memory
from jaxrl.runtime.host import Abandoned

INTERRUPTED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

# What a disk answers that can take no more, whatever it is asked for.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)


class NotFinite(Stopped):
    """A run's loss was no longer finite; the message says since when and where its state lies."""


@dataclasses.dataclass
class Interrupt:
    """The first SIGINT or SIGTERM that came, for the run to end where it loses nothing."""

    number: int | None = None

    @property
    def reason(self) -> str | None:
        return None if self.number is None else INTERRUPTED[signal.Signals(self.number)]

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """While this is open the first interrupt is noted and a second one ends the process at
        once. Nothing is printed here: the signal may have come in the middle of printing."""

        def handle(number, frame):
            if self.number is None:
                self.number = number
            elif number == signal.SIGINT:
                raise KeyboardInterrupt
            else:
                raise SystemExit(128 + number)

        before = {number: signal.signal(number, handle) for number in INTERRUPTED}
        try:
            yield
        except Abandoned:  # while the run started
            print(f"{self.reason} before there was anything to save.", file=sys.stderr)
            raise SystemExit(128 + (self.number or 0)) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def explained(folder: Path | None) -> Iterator[None]:
    """Raises `Stopped`, a line with what is left of the run in `folder` (None before it has one),
    for what is due to the machine and not to the program: too little memory, a disk that is full,
    a folder that is gone."""
    try:
        yield
    except (OSError, CheckpointError, MemoryError, RuntimeError) as error:
        why = _cause(error, folder)
        if why is None:
            raise
        raise Stopped(f"{why} {_left(folder)}".strip()) from error


def check_there(folder: Path) -> None:
    """Raises `FileNotFoundError` if `folder` is gone; writing into it would make it anew, with
    nothing else in it."""
    if _gone(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _gone(folder: Path) -> bool:
    """Also where a checkpoint that was being written has made the folder anew."""
    return not (folder / "config.yaml").is_file()


def _cause(error: Exception, folder: Path | None) -> str | None:
    """A sentence; None where it may be due to the program."""
    if out_of_memory(error):
        said = first_line(error).rstrip(".")
        return (
            f"Memory ran out ({said}); a run with fewer environments or seeds, or with a smaller "
            "replay buffer, needs less."
        )
    if not isinstance(error, OSError | CheckpointError):
        return None
    if folder is not None and _gone(folder):
        return f"The run's folder '{folder}' is gone, and with it all that was saved."
    if isinstance(error, CheckpointError):
        return str(error) if folder else None  # to be said as bad input where nothing ran yet
    ours = folder is not None and str(error.filename).startswith(str(folder))
    if not ours and error.errno not in DISK:
        return None
    return f"'{error.filename or folder or 'A file'}' cannot be written: {error.strerror}."


def _left(folder: Path | None) -> str:
    """A sentence on what is left of a run that ended early; none if its folder is gone."""
    if folder is None:
        return "Nothing new was saved."
    if _gone(folder):
        return ""
    try:
        newest = checkpoints.latest(run_folder.checkpoints(folder), lambda broken: None)
    except CheckpointError as error:
        return str(error)
    return f"The last whole checkpoint is {newest}; go on with {run_folder.to_resume(folder)}"
