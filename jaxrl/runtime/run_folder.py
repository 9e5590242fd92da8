"""The folder of a run: config.yaml, metrics.jsonl, checkpoints/, learning_curve.png,
summary.json. Two runs never share one."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration
from jaxrl.runtime.configuration import Experiment


def create(out: str, name: str, stem: str) -> Path:
    """A new folder in `out`, called `name`, or `stem` and the next free number.

    Raises `UserError` if it exists already or cannot be written.
    """
    parent = Path(out)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if name:
            folder = parent / name
            folder.mkdir()
            return folder
        number = 1
        while True:
            folder = parent / f"{stem}-{number:04d}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except FileExistsError:
        what = parent / name if name and parent.is_dir() else parent
        raise UserError(
            f"'{what}' exists already; choose another name, or --resume {what} to go on with it."
        ) from None
    except OSError as error:
        raise UserError(f"'{parent}' cannot be written: {error.strerror}.") from error


def check(folder: str | Path) -> Path:
    """`folder` as a path. Raises `UserError` unless it is a run's folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"There is no run folder '{folder}'.")
    if not (folder / "config.yaml").is_file():
        raise UserError(f"'{folder}' is not a run folder: it has no config.yaml.")
    return folder


def read_config(folder: str | Path) -> Experiment:
    """The settings that the run in `folder` was started with."""
    return configuration.experiment(configuration.load(check(folder) / "config.yaml"))


def checkpoints(folder: Path) -> Path:
    return folder / "checkpoints"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; released however the process ends.

    Raises `UserError` if another process holds it.
    """
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"Another process is writing to '{folder}'.") from None
        file.write(str(os.getpid()))
        file.flush()
        yield
