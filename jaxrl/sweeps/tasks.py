"""Tasks of a sweep: a part trained here, or by another process that sees the sweep's folder.

A task is small. All that it needs is in the sweep's folder: it reads the settings, the points and
the checkpoints of the part there and writes there, and only an `Outcome` comes back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from jaxrl.core.errors import UserError
from jaxrl.runtime import continuing, run_folder, training
from jaxrl.runtime.building import build, configure_jax, plan
from jaxrl.runtime.configuration import Experiment, Trust
from jaxrl.runtime.display import Display
from jaxrl.runtime.errors import Stopped, first_line
from jaxrl.runtime.members import has_many_runs
from jaxrl.runtime.stopping import INTERRUPTED, NotFinite
from jaxrl.sweeps.parts import Part, Sweep, apply_structure, read
from jaxrl.sweeps.points import format_value, is_hyper
from jaxrl.sweeps.segments import segments

FREED_SECONDS = 60.0  # within which a part must be left by a process that was lost

Kind = Literal["ended", "interrupted", "lost", "user error", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A part of a sweep for another process to train.

    folder: the sweep's, relative to `cwd` or absolute.
    name: the part's, the name of its run's folder; empty for a sweep that is one run.
    cwd: current folder of the process that runs the sweep; relative paths begin there.
    launch: identifies the invocation of the sweep, all of whose tasks end once `stop_file` exists.
    trust: code outside of jaxrl that may be imported.
    changes: settings of this invocation, which the sweep's folder does not hold.
    """

    folder: str
    name: str
    cwd: str
    launch: str
    trust: Trust
    changes: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """End of a task: all that comes back from it.

    kind: `ended` (the part is finished, or `message` says that its losses are not finite),
        `interrupted` (the part is saved), `lost` (its process is gone, or found the part in use),
        or an error: `user error`, `stopped` or `failed`, as `UserError`, `Stopped` or anything else
        would be here.
    """

    kind: Kind
    message: str = ""
    host: str = ""


def invocation(config: Experiment) -> dict[str, Any]:
    """Return the settings that belong to this invocation of a sweep rather than to its runs."""
    return {name: getattr(config, name) for name in ("debug", "quiet", *continuing.CHANGEABLE)}


def stop_file(folder: str | Path, launch: str) -> Path:
    """Return the file that tells tasks of an invocation that have not begun yet not to begin."""
    return Path(folder) / f".stop-{launch}"


def log_file(folder: str | Path, name: str) -> Path:
    """Return the file to which a task writes what it would print."""
    return Path(folder) / f"{name or 'task'}.log"


def run(task: Task) -> Outcome:
    """Run a task in this process, which does nothing else, and return how it ended."""
    host = socket.gethostname()
    try:
        with _interruptible():
            return dataclasses.replace(_run(task, host), host=host)
    except SystemExit:  # after an interrupt; what there was to save is saved
        return Outcome("interrupted", host=host)
    except KeyboardInterrupt:
        return Outcome("lost", "it was interrupted twice", host)


def _run(task: Task, host: str) -> Outcome:
    try:
        os.chdir(task.cwd)
    except OSError as error:
        return Outcome("user error", f"'{task.cwd}' cannot be opened on {host}: {error.strerror}.")
    if task.cwd not in sys.path:
        sys.path.append(task.cwd)  # as `jaxrl` does, for modules of the user's
    folder = Path(task.folder)
    if not folder.is_dir():
        return Outcome("user error", not_shared(folder, host))
    if stop_file(folder, task.launch).exists():
        return Outcome("interrupted")
    follow_no_link = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o666)
    with (
        open(log_file(folder, task.name), "a", buffering=1, opener=follow_no_link) as log,
        contextlib.redirect_stderr(log),
        contextlib.redirect_stdout(log),
    ):
        try:
            with _hold(folder, task.name) as is_free:
                if not is_free:
                    return Outcome("lost", "another process is still training the part")
                return Outcome("ended", _train_from_folder(folder, task))
        except UserError as error:
            return Outcome("user error", str(error))
        except Stopped as error:
            return Outcome("stopped", str(error))
        except Exception as error:  # such as one in an environment of the user's
            traceback.print_exc()
            where = f"{type(error).__name__}: {first_line(error)}"
            return Outcome("failed", f"{where} (its traceback is in {log.name})")


def not_shared(folder: Path, host: str) -> str:
    """Return the sentence about a folder that `host` does not see."""
    return (
        f"There is no folder '{folder}' on {host}; the folder of a sweep must lie on storage that "
        "all nodes share, at one path."
    )


def _train_from_folder(folder: Path, task: Task) -> str:
    """Train a task's part by what the sweep's folder holds; as `train_part`."""
    config = dataclasses.replace(run_folder.read_config(folder, task.trust), **task.changes)
    config = dataclasses.replace(config, trust=task.trust is True)
    configure_jax(config)
    if not has_many_runs(folder):
        try:
            training.train(dataclasses.replace(config, resume=str(folder)))
        except NotFinite as error:
            return str(error)
        return ""
    new = read(folder, config)
    for parts, end in segments(folder, config, new):
        for part in parts:
            if part.name == task.name:
                return train_part(folder, config, new, part, end, Display(config.quiet))
    raise UserError(f"'{folder}' has no part '{task.name}'.")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """End the process's task on an interrupt that comes while there is nothing to save.

    A run that is being trained notes interrupts itself.
    """

    def handle(number: int, frame: types.FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, handle) for number in INTERRUPTED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_held(task: Task) -> bool:
    """Return whether a process, perhaps one of an earlier invocation, trains a task's part."""
    try:
        handle = os.open(_lock_file(Path(task.folder), task.name), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def _lock_file(folder: Path, name: str) -> Path:
    return folder / f".{name or 'task'}.lock"


@contextlib.contextmanager
def _hold(folder: Path, name: str) -> Iterator[bool]:
    """Hold a part for this process until it ends in any way.

    Yields False if another process still holds it after `FREED_SECONDS`. One that was lost with its
    node, or whose node only lost its connection, may live a little longer.
    """
    handle = os.open(_lock_file(folder, name), os.O_RDWR | os.O_CREAT)
    began = time.monotonic()
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_free = True
            except BlockingIOError:
                is_free = False
            if is_free or time.monotonic() - began > FREED_SECONDS:
                break
            time.sleep(0.2)
        yield is_free
    finally:
        os.close(handle)


# -------------------------------------------------------------------------------- a part


def train_part(
    folder: Path, config: Experiment, new: Sweep, part: Part, end: int, display: Display
) -> str:
    """Train one run to its end; a finished run is left alone.

    Returns:
        What is to be said of it: empty unless no member's numbers are finite any more. The other
        runs still continue then.
    """
    run = folder / part.name
    if has_ended(run):
        return ""
    display.say(describe(config, new, part))
    try:
        if run.exists():
            before = run_folder.read_config(run, config.trust or continuing.trusted_code(config))
            now = {"trust": config.trust, **invocation(config)}
            training.train(dataclasses.replace(before, resume=str(run), **now))
        else:
            training.train(_part_config(folder, config, new, part, end), part.members)
    except NotFinite as error:
        return str(error)
    return ""


def describe(config: Experiment, new: Sweep, part: Part) -> str:
    """Return a line about a part, such as `program1: 4 members, hidden 64`."""
    point = new.points[part.points[0]]
    own = [f"{k} {format_value(v)}" for k, v in point.items() if not is_hyper(config, k)]
    return ", ".join([f"{part.name}: {len(part.members)} members", *own])


def _part_config(folder: Path, config: Experiment, new: Sweep, part: Part, end: int) -> Experiment:
    """Return a part's configuration; its segments log, evaluate and save as the whole run would."""
    config = apply_structure(config, new.points[part.points[0]])
    _, algorithm = build(config)
    whole = plan(config, algorithm)
    every = {
        f"{name}_every": getattr(whole, name) * algorithm.env_steps
        for name in ("log", "evaluate", "checkpoint")
    }
    if part.segment:
        earlier = dataclasses.replace(part, segment=part.segment - 1)
        config = dataclasses.replace(config, fork=str(folder / earlier.name), warm_start="")
    return dataclasses.replace(config, out=str(folder), name=part.name, steps=end, **every)


def has_ended(run: Path) -> bool:
    """Return whether the run of a part is finished, or cannot continue."""
    summary = run_folder.summary(run)
    return bool(summary.get("finished")) or summary.get("stopped_because") == "not finite"
