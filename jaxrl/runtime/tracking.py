"""Rows of a run's log for programs that show them during the run.

`--track tensorboard` and `--track wandb` (Weights & Biases) need the extra `track`. metrics.jsonl
stays the record. A tracker receives its rows in order, each once: a resumed run, tracked before or
not, first sends the rows that are missing.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxrl.core import plugins
from jaxrl.core.errors import UserError
from jaxrl.runtime import configuration, run_folder
from jaxrl.runtime import log as logs
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import Members

Row = dict[str, Any]  # as `logs.Log.write` takes it, or as `logs.read` returns it


class Backend(Protocol):
    """A program that shows scalars. `rows`: the number of rows it has received, in all parts."""

    module: str  # the Python module that it needs
    rows: int

    def __init__(self, config: Experiment, folder: Path, say: Callable[[str], None]): ...

    def write(self, row: Row, scalars: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def check(kind: str) -> None:
    """Raise `UserError` if the tracker is not installed."""
    if kind != "none":
        plugins.package(BACKENDS[kind].module, "track")


def start(config: Experiment, folder: Path, members: Members, display: Display) -> Tracker:
    """Start the tracker that `config` names, for the run in `folder`, and send it the log so far.

    Raises:
        UserError: if it cannot start.
    """
    if config.track == "none":
        return Tracker(None, members)
    try:
        backend = BACKENDS[config.track](config, folder, display.say)
    except Exception as error:  # any error inside someone else's package
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"{config.track} cannot start ({message}); to continue without it: "
            f"{run_folder.resume_command(folder)} --track none"
        ) from error
    tracker = Tracker(backend, members, display.warn)
    for row in logs.read(folder / "metrics.jsonl"):
        tracker.write(row)
    return tracker


class Tracker:
    """Receives all rows of a log in order, and passes on those that its backend does not have."""

    def __init__(
        self,
        backend: Backend | None,
        members: Members,
        warn: Callable[[str], None] = lambda message: None,
    ):
        self._backend, self._members, self._warn = backend, members, warn
        self._rows = 0

    def write(self, row: Row) -> None:
        """Pass on a row of the log, unless the backend has it."""
        self._rows += 1
        if self._backend is not None and self._rows > self._backend.rows:
            self._try(lambda backend: backend.write(row, scalars(row, self._members)))

    def close(self) -> None:
        """Close the backend."""
        self._try(lambda backend: backend.close())

    def _try(self, do: Callable[[Backend], None]) -> None:
        """Call `do`; an error in a tracker ends the tracking, not the run."""
        try:
            if self._backend is not None:
                do(self._backend)
        except Exception as error:
            self._backend = None
            self._warn(
                f"Tracking ends here ({type(error).__name__}: {error}); the run continues, and "
                "metrics.jsonl has all rows."
            )


def scalars(row: Row, members: Members) -> dict[str, float]:
    """Return `train/NAME` and the like: the mean over the members that have a value.

    With several members, each one's own value follows under its name.
    """
    found = {}
    for name, values in row["metrics"].items():
        values = np.asarray(values, float)  # None is NaN
        known = np.flatnonzero(np.isfinite(values))
        tag = f"{row['kind']}/{name}"
        if known.size:
            found[tag] = float(values[known].mean())
        if len(members) > 1:
            found |= {f"{tag}/{members.name(int(i))}": float(values[i]) for i in known}
    return found


class TensorBoard:
    """Event files in the run's folder.

    When a run is resumed, a new file makes TensorBoard forget the earlier ones, and holds all rows
    again. So no row after the last checkpoint is left over, and none is missing.
    """

    module = "tensorboard.summary.writer.event_file_writer"

    def __init__(self, config: Experiment, folder: Path, say: Callable[[str], None]):
        del config
        self.rows = 0
        writer = plugins.package(self.module, "track")
        self._events = plugins.package("tensorboard.compat.proto.event_pb2", "track")
        self._summaries = plugins.package("tensorboard.compat.proto.summary_pb2", "track")
        place = folder / "tensorboard"
        # Files are read in the order of their names, which contain the time in seconds.
        seconds = [int(path.name.split(".")[3]) for path in place.glob("events.out.tfevents.*")]
        time.sleep(min(1.0, max(0.0, max(seconds, default=0) + 1 - time.time())))
        self._writer = writer.EventFileWriter(str(place))
        # TensorBoard forgets earlier rows from step 0 on.
        session = self._events.SessionLog(status=self._events.SessionLog.START)
        self._writer.add_event(self._events.Event(step=0, session_log=session))
        self._writer.flush()
        say(f"To watch this run: tensorboard --logdir {place}")

    def write(self, row: Row, scalars: dict[str, float]) -> None:
        value = self._summaries.Summary.Value
        summary = self._summaries.Summary(
            value=[value(tag=tag, simple_value=number) for tag, number in scalars.items()]
        )
        when = row.get("time", row.get("seconds"))  # Unix time; older logs call it seconds
        event = self._events.Event(wall_time=when, step=int(row["steps"]), summary=summary)
        self._writer.add_event(event)
        self._writer.flush()  # rows are few, and a kill must not lose any
        self.rows += 1

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases that continues under its id; offline unless WANDB_MODE says more.

    It cannot forget rows. So wandb.json in the run's folder holds, beside the id, the number of
    rows sent in finished parts, and rows that are made again after a checkpoint are not sent again.
    The rows of an unfinished part (nobody knows what it holds after a kill) are sent again: offline
    the part is removed, and online wandb itself drops steps that it has.
    """

    module = "wandb"

    def __init__(self, config: Experiment, folder: Path, say: Callable[[str], None]):
        wandb = plugins.package(self.module, "track")
        self._file = folder / "wandb.json"
        known = {"id": uuid.uuid4().hex[:12], "rows": 0, "parts": []}
        if self._file.exists():
            known = json.loads(self._file.read_text())
        self._id, self.rows, self._parts = known["id"], known["rows"], known["parts"]
        self._save()  # before anything can go wrong
        for part in (folder / "wandb").glob("offline-run-*"):
            if part.name not in self._parts:
                shutil.rmtree(part)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "jaxrl"),
            name=folder.name,
            id=self._id,
            resume="allow",
            dir=str(folder),
            config=configuration.to_dict(config),
            allow_val_change=True,  # on resume, of `devices` or `track`
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(console="off", silent=True),
        )
        offline = self._run.offline
        say(f"To upload this run: wandb sync {folder / 'wandb'}" if offline else self._run.url)

    def write(self, row: Row, scalars: dict[str, float]) -> None:
        self._run.log(scalars, step=int(row["steps"]))
        self.rows += 1

    def close(self) -> None:
        self._run.finish()
        self._parts = [*self._parts, Path(self._run.dir).parent.name]
        self._save()

    def _save(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"id": self._id, "rows": self.rows, "parts": self._parts}))
        new.replace(self._file)


BACKENDS: dict[str, type[Backend]] = {"tensorboard": TensorBoard, "wandb": Wandb}
