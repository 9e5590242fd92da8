"""The folder of a run: config.yaml, members.json, metrics.jsonl, checkpoints/,
learning_curve.png, summary.json. Two runs never share one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxrl
from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration
from jaxrl.runtime.configuration import Experiment, Trust

OLDEST = (0, 2)  # since then settings are in groups
BEFORE_OLDEST = "82e1f87"

_DRAFT = re.compile(r"\.new-[0-9a-f]{12}")


@contextlib.contextmanager
def draft(out: str, name: str) -> Iterator[Path]:
    """A hidden new folder in `out`, locked for this process, also once it is published; removed at
    the end unless it was: whatever goes wrong until a run has its first checkpoint, no half-made
    run folder is seen, and what a killed process could not remove goes at the next start.

    Raises `UserError` if `out` cannot be written, has a `name` already, or `name` is no folder's.
    """
    configuration.check_name(name)
    parent = Path(out)
    if name and (parent / name).exists():
        raise _exists(parent / name)
    folder = parent / f".new-{uuid.uuid4().hex[:12]}"
    with contextlib.ExitStack() as held:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with _alone_in(parent) as alone:
                if alone:
                    _sweep(parent)
                folder.mkdir()
                held.callback(shutil.rmtree, folder, ignore_errors=True)
                held.enter_context(locked(folder))
        except OSError as error:
            raise UserError(f"'{parent}' cannot be written: {error.strerror}.") from error
        yield folder


@contextlib.contextmanager
def _alone_in(parent: Path) -> Iterator[bool]:
    """Wait until no other process makes a draft in `parent`, and keep others from it. False where
    the file system knows no locks on folders."""
    handle = os.open(parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(handle)


def _sweep(parent: Path) -> None:
    """Remove the drafts in `parent` that no living process holds."""
    for folder in parent.iterdir():
        if _DRAFT.fullmatch(folder.name):
            with contextlib.suppress(UserError), locked(folder):
                shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, name: str, stem: str) -> Path:
    """Give a draft its `name`, or `stem` and the next free number; returns where it is now.

    Raises `UserError` if the name was taken in the meantime.
    """
    number = 0
    while True:
        number += 1
        final = folder.parent / (name or f"{stem}-{number:04d}")
        try:
            if not final.exists():
                return folder.rename(final)
        except OSError:  # somebody made it since
            if not final.exists():
                raise
        if name:
            raise _exists(final)


def slug(name: str) -> str:
    """`name` as a part of a folder's name."""
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")


def _exists(folder: Path) -> UserError:
    return UserError(
        f"'{folder}' exists already; choose another name, or --resume {folder} to go on with it."
    )


def check(folder: str | Path) -> Path:
    """`folder` as a path. Raises `UserError` unless it is a run's folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"There is no run folder '{folder}'.")
    if not (folder / "config.yaml").is_file():
        raise UserError(f"'{folder}' is not a run folder: it has no config.yaml.")
    return folder


def read_config(folder: str | Path, trust: Trust = False) -> Experiment:
    """The settings that the run in `folder` was started with.

    trust: whether code from outside of jaxrl that they name may be imported; or what of it.
    Raises `UserError` if `folder` is no run's folder, if it cannot be read, and, before anything is
    imported, if it names other code: a folder may come from anybody, and importing runs it.
    """
    path = check(folder) / "config.yaml"
    data = configuration.load(path)
    if not data:
        raise UserError(f"'{path}' is empty; a run's config.yaml holds all of its settings.")
    check_trust(folder, data, trust)
    _check_version(folder)
    return configuration.experiment(data)


def check_trust(folder: str | Path, data: dict[str, Any], trust: Trust) -> None:
    """Raises `UserError` if `data`, from a file in `folder`, names code that is not trusted."""
    if trust is True:
        return
    strange = sorted(configuration.foreign(data) - (trust or frozenset()))
    if strange:
        raise UserError(
            f"'{folder}' names code outside of jaxrl, {', '.join(strange)}; importing it runs "
            "it, so say --trust (trust=True) if you trust it."
        )


def _check_version(folder: str | Path) -> None:
    """Raises `UserError` for a run whose settings and states had other names, saying what reads
    it. A folder whose checkpoints do not say who made them is looked at as it is."""
    for path in sorted(checkpoints(Path(folder)).glob("step_*/meta.json"), reverse=True):
        try:
            version = str(json.loads(path.read_text())["meta"]["jaxrl"])
            numbers = tuple(int(part) for part in version.split(".")[:2])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if numbers < OLDEST:
            raise UserError(
                f"'{folder}' was made by jaxrl {version}, whose settings have other names; this is "
                f"{jaxrl.__version__}. The last that reads it is `git checkout {BEFORE_OLDEST}`."
            )
        return


def summary(folder: Path) -> dict[str, Any]:
    """What summary.json says of the run in `folder`; nothing where there is none yet, or where it
    cannot be read."""
    try:
        found = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def to_resume(folder: Path) -> str:
    """The options by which the run in `folder` goes on."""
    try:
        strange = configuration.foreign(configuration.load(folder / "config.yaml"))
    except UserError:  # a folder that is gone names nothing
        strange = frozenset()
    return f"--resume {folder}" + (" --trust" if strange else "")


def checkpoints(folder: Path) -> Path:
    return folder / "checkpoints"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process, also if it is renamed; released however the process ends.

    Raises `UserError` if another process holds it, or it cannot be written.
    """
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be written: {error.strerror}.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another process is writing to '{folder}'.") from None
        yield
    finally:
        os.close(handle)
