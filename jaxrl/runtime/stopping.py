"""Early ends of a run: an interrupt, too little memory, or a disk that is full or gone."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from jaxrl.runtime import checkpoints, processes, run_folder
from jaxrl.runtime.checkpoint_files import CheckpointError
from jaxrl.runtime.errors import Stopped, first_line, out_of_memory
from jaxrl.runtime.host import Abandoned

INTERRUPTED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

# Errors of a disk that cannot be written to, whatever the file.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)


class NotFinite(Stopped):
    """A loss that was not finite; the message says since when, and where the state is saved."""


@dataclasses.dataclass
class Interrupt:
    """The first SIGINT or SIGTERM, noted so that the run ends where it loses nothing."""

    number: int | None = None

    @property
    def reason(self) -> str | None:
        return None if self.number is None else INTERRUPTED[signal.Signals(self.number)]

    def agree(self) -> str | None:
        """Return the reason of all processes, of which any may have got a signal; all call this."""
        self.number = processes.largest(self.number or 0) or None
        return self.reason

    @contextlib.contextmanager
    def catch(self) -> Iterator[None]:
        """Note the first interrupt while this is open; a second one ends the process at once.

        Nothing is printed here, since the signal may arrive in the middle of printing.
        """

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
        except Abandoned:  # during the run's start
            print(f"{self.reason} before there was anything to save.", file=sys.stderr)
            raise SystemExit(128 + (self.number or 0)) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def explain_failures(folder: Path | None) -> Iterator[None]:
    """Raise `Stopped` for failures of the machine rather than the program.

    These are too little memory, a full disk and a deleted folder. The message says what is left of
    the run in `folder` (None before it has one).
    """
    try:
        yield
    except (OSError, CheckpointError, MemoryError, RuntimeError) as error:
        why = _cause(error, folder)
        if why is None:
            raise
        raise Stopped(f"{why} {_remains(folder)}".strip()) from error


def check_exists(folder: Path) -> None:
    """Raise `FileNotFoundError` if `folder` is gone.

    Writing to it would make it again, with nothing else in it.
    """
    if _is_gone(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _is_gone(folder: Path) -> bool:
    """Return whether the run's folder was deleted, even if a checkpoint has made it again since."""
    return not (folder / "config.yaml").is_file()


def _cause(error: Exception, folder: Path | None) -> str | None:
    """Return a sentence about the machine's failure; None if the program may be at fault."""
    if out_of_memory(error):
        message = first_line(error).rstrip(".")
        return (
            f"Memory ran out ({message}); a run with fewer environments or seeds, or with a "
            "smaller replay buffer, needs less."
        )
    if not isinstance(error, OSError | CheckpointError):
        return None
    if folder is not None and _is_gone(folder):
        if (folder / "members.json").is_file():
            return (
                f"'{folder / 'config.yaml'}' is gone, without which the run cannot be continued; "
                f"its checkpoints are in {run_folder.checkpoints(folder)}."
            )
        return f"The run's folder '{folder}' is gone, with everything that was saved."
    if isinstance(error, CheckpointError):
        return str(error) if folder else None  # bad input, if nothing has run yet
    in_folder = folder is not None and str(error.filename).startswith(str(folder))
    if not in_folder and error.errno not in DISK:
        return None
    return f"'{error.filename or folder or 'A file'}' cannot be written: {error.strerror}."


def _remains(folder: Path | None) -> str:
    """Return a sentence about what is left of a run that ended early; "" if its folder is gone."""
    if folder is None:
        return "Nothing new was saved."
    if _is_gone(folder):
        return ""
    try:
        newest = checkpoints.latest(run_folder.checkpoints(folder), lambda broken: None)
    except CheckpointError as error:
        return str(error)
    resume = run_folder.resume_command(folder)
    return f"The last undamaged checkpoint is {newest}; continue with {resume}"
