"""The folder of a run: config.yaml, members.json, metrics.jsonl, checkpoints/, learning_curve.png
and summary.json. Two runs never share one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jaxrl
from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration, files
from jaxrl.runtime.configuration import Experiment, Trust

OLDEST = (0, 2)  # the first version whose settings are in groups
BEFORE_OLDEST = "82e1f87"

# Types of what a summary says, for those that read it.
_SUMMARY: dict[str, Any] = {
    "finished": bool, "stopped_because": str | None, "members": list, "returns": list | None,
    "steps_per_second": int | float, "seconds": dict, "versions": dict, "diverged": dict,
    "device": str, "generator": str,
}  # fmt: skip
_DRAFT = re.compile(r"\.new-[0-9a-f]{12}")


@contextlib.contextmanager
def draft(out: str, name: str) -> Iterator[Path]:
    """Make a hidden new folder in `out`, locked for this process even after it is published.

    It is removed at the end unless it was published, so a failure before a run's first checkpoint
    leaves no half-made run folder. A draft that a killed process could not remove is removed when
    the next run starts.

    Raises:
        UserError: if `out` cannot be written or already has a `name`, or if `name` is not valid.
    """
    configuration.check_name(name)
    parent = Path(out)
    if name and (parent / name).exists():
        raise _already_exists(parent / name)
    folder = parent / f".new-{uuid.uuid4().hex[:12]}"
    with contextlib.ExitStack() as held:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with _exclusive(parent) as alone:
                if alone:
                    _remove_stale_drafts(parent)
                folder.mkdir()
                held.callback(shutil.rmtree, folder, ignore_errors=True)
                held.enter_context(lock(folder))
        except OSError as error:
            raise UserError(f"'{parent}' cannot be written: {error.strerror}.") from error
        yield folder


@contextlib.contextmanager
def _exclusive(parent: Path) -> Iterator[bool]:
    """Wait until no other process makes a draft in `parent`, and keep others from doing so.

    Yields False if the file system has no locks on folders.
    """
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


def _remove_stale_drafts(parent: Path) -> None:
    """Remove the drafts in `parent` that no living process holds."""
    for folder in parent.iterdir():
        if _DRAFT.fullmatch(folder.name):
            with contextlib.suppress(UserError), lock(folder):
                shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, name: str, stem: str) -> Path:
    """Rename a draft to `name`, or to `stem` and the next free number, and return its new path.

    Raises:
        UserError: if the name was taken in the meantime.
    """
    number = 0
    while True:
        number += 1
        final = folder.parent / (name or f"{stem}-{number:04d}")
        try:
            if not final.exists():
                return folder.rename(final)
        except OSError:  # someone else has made it since
            if not final.exists():
                raise
        if name:
            raise _already_exists(final)


def slug(name: str) -> str:
    """Return `name` as a part of a folder's name."""
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")


def name_by_settings(settings: Mapping[str, Any]) -> str:
    """Return a name of the run with these settings that another run does not have."""
    text = json.dumps(settings, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{slug(settings['algorithm'])}-{slug(settings['env'])}-{digest}"


def _already_exists(folder: Path) -> UserError:
    return UserError(
        f"'{folder}' already exists; choose another name, or continue it with jaxrl resume "
        f"{shlex.quote(str(folder))}."
    )


def check(folder: str | Path) -> Path:
    """Return `folder` as a path. Raises `UserError` unless it is a run's folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"There is no run folder '{folder}'.")
    if not (folder / "config.yaml").is_file():
        raise UserError(f"'{folder}' is not a run folder: it has no config.yaml.")
    for entry in os.scandir(folder):  # folders may lie on other disks, files may not
        if not entry.is_dir() and not entry.is_file(follow_symlinks=False):
            what = "a link" if entry.is_symlink() else "a device"
            raise UserError(
                f"'{entry.path}' is {what}; the files in a run's folder must be plain ones."
            )
    return folder


def read_config(folder: str | Path, trust: Trust = False) -> Experiment:
    """Return the settings that the run in `folder` was started with.

    trust: whether to import code outside of jaxrl that they name, or the names to import. A folder
        may come from anyone, and importing code runs it.

    Raises:
        UserError: if `folder` is not a run's folder or cannot be read, or (before anything is
            imported) if it names code that is not trusted.
    """
    path = check(folder) / "config.yaml"
    data = configuration.load(path)
    if not data:
        raise UserError(f"'{path}' is empty; a run's config.yaml must hold all of its settings.")
    check_trust(folder, data, trust)
    _check_version(folder)
    return configuration.experiment(data)


def check_trust(folder: str | Path, data: dict[str, Any], trust: Trust) -> None:
    """Raise `UserError` if `data`, from a file in `folder`, names code that is not trusted."""
    if trust is True:
        return
    strange = sorted(configuration.foreign_code(data) - (trust or frozenset()))
    if strange:
        raise UserError(
            f"'{folder}' names code outside of jaxrl, {', '.join(strange)}; importing it runs it; "
            "if you trust it, add --trust (trust=True)."
        )


def _check_version(folder: str | Path) -> None:
    """Raise `UserError` for a run of a version whose settings and states had other names.

    The error says which version reads it. A folder whose checkpoints do not state their version is
    accepted.
    """
    for path in sorted(checkpoints(Path(folder)).glob("step_*/meta.json"), reverse=True):
        try:
            version = str(files.read_json(path)["meta"]["jaxrl"])
            numbers = tuple(int(part) for part in version.split(".")[:2])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if numbers < OLDEST:
            raise UserError(
                f"'{folder}' was made by jaxrl {version}, whose settings have other names; this is "
                f"{jaxrl.__version__}. The last version that reads it: git checkout "
                f"{BEFORE_OLDEST}."
            )
        return


def summary(folder: Path) -> dict[str, Any]:
    """Return the content of summary.json in `folder`; empty if it is missing or cannot be read.

    What is of another type than `Session` writes is left out.
    """
    try:
        found = files.read_json(folder / "summary.json")
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: x for name, x in found.items() if isinstance(x, _SUMMARY.get(name, object))}


def resume_command(folder: Path) -> str:
    """Return the command that resumes the run in `folder`."""
    try:
        strange = configuration.foreign_code(configuration.load(folder / "config.yaml"))
    except UserError:  # a folder that is gone names no code
        strange = frozenset()
    return f"jaxrl resume {shlex.quote(str(folder))}" + (" --trust" if strange else "")


def checkpoints(folder: Path) -> Path:
    """Return the folder of the checkpoints in a run's folder."""
    return folder / "checkpoints"


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process, even if it is renamed, until the process ends in any way.

    Raises:
        UserError: if another process holds it, or it cannot be written.
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
