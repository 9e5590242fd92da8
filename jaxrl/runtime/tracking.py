"""The rows of a run's log for programs that show them while it goes on: `--track tensorboard` or
`--track wandb` (Weights & Biases), which the extra `track` brings.

metrics.jsonl stays the truth. A tracker is told its rows in order, each once: a run that goes on,
tracked before or not, is told the rows that are missing first.
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

Row = dict[str, Any]  # as `logs.Log.write` takes it, or as it is read again


class Backend(Protocol):
    """A program that shows scalars. `told`: how many rows it has been told, now or before."""

    module: str  # without which there is none
    told: int

    def __init__(self, config: Experiment, folder: Path, say: Callable[[str], None]): ...

    def tell(self, row: Row, scalars: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def check(kind: str) -> None:
    """Raises `UserError` if the tracker is not installed."""
    if kind != "none":
        plugins.package(BACKENDS[kind].module, "track")


def start(config: Experiment, folder: Path, members: Members, display: Display) -> Tracker:
    """The tracker that `config` names, for the run in `folder`, told of its log so far.

    Raises `UserError` if it cannot start.
    """
    if config.track == "none":
        return Tracker(None, members)
    try:
        backend = BACKENDS[config.track](config, folder, display.say)
    except Exception as error:  # whatever goes wrong inside someone else's package
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"{config.track} cannot start ({said}); "
            f"{run_folder.to_resume(folder)} --track none goes on without it."
        ) from error
    tracker = Tracker(backend, members, display.warn)
    for row in logs.read(folder / "metrics.jsonl"):
        tracker.write(row)
    return tracker


class Tracker:
    """Is told all rows of a log in order, and tells its backend what that does not know."""

    def __init__(
        self,
        backend: Backend | None,
        members: Members,
        warn: Callable[[str], None] = lambda message: None,
    ):
        self._backend, self._members, self._warn = backend, members, warn
        self._rows = 0

    def write(self, row: Row) -> None:
        self._rows += 1
        if self._backend is not None and self._rows > self._backend.told:
            self._try(lambda backend: backend.tell(row, scalars(row, self._members)))

    def close(self) -> None:
        self._try(lambda backend: backend.close())

    def _try(self, do: Callable[[Backend], None]) -> None:
        """Whatever goes wrong in a tracker is no reason to lose a run."""
        try:
            if self._backend is not None:
                do(self._backend)
        except Exception as error:
            self._backend = None
            self._warn(
                f"Tracking ends here ({type(error).__name__}: {error}); the run goes on, and "
                "metrics.jsonl has all rows."
            )


def scalars(row: Row, members: Members) -> dict[str, float]:
    """`train/NAME` and the like: the mean over the members that have a value and, of several
    members, each one's own under its name."""
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
    """Event files in the run's folder. Whenever a run goes on, a new one makes TensorBoard forget
    those before and holds all rows anew: so none that a checkpoint cut off is left, and none is
    missing."""

    module = "tensorboard.summary.writer.event_file_writer"

    def __init__(self, config: Experiment, folder: Path, say: Callable[[str], None]):
        del config
        self.told = 0
        writer = plugins.package(self.module, "track")
        self._events = plugins.package("tensorboard.compat.proto.event_pb2", "track")
        self._summaries = plugins.package("tensorboard.compat.proto.summary_pb2", "track")
        place = folder / "tensorboard"
        # Files are read in the order of their names, which tell the second.
        seconds = [int(path.name.split(".")[3]) for path in place.glob("events.out.tfevents.*")]
        time.sleep(min(1.0, max(0.0, max(seconds, default=0) + 1 - time.time())))
        self._writer = writer.EventFileWriter(str(place))
        # Rows before are forgotten from step 0 on.
        session = self._events.SessionLog(status=self._events.SessionLog.START)
        self._writer.add_event(self._events.Event(step=0, session_log=session))
        self._writer.flush()
        say(f"tensorboard --logdir {place} shows this run.")

    def tell(self, row: Row, scalars: dict[str, float]) -> None:
        value = self._summaries.Summary.Value
        summary = self._summaries.Summary(
            value=[value(tag=tag, simple_value=number) for tag, number in scalars.items()]
        )
        when = row.get("time", row.get("seconds"))  # Unix time, by either of its names
        event = self._events.Event(wall_time=when, step=int(row["steps"]), summary=summary)
        self._writer.add_event(event)
        self._writer.flush()  # rows are few, and a kill must not lose any
        self.told += 1

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases that goes on under its id; offline unless WANDB_MODE says more.

    It cannot forget. So wandb.json in the run's folder holds, beside the id, how many rows it was
    told in parts that were finished, and rows that are made again after a checkpoint are not told
    again. A part that was not finished (after a kill, nobody knows what it holds) is told anew:
    offline it is removed, and online wandb itself drops steps that it has.
    """

    module = "wandb"

    def __init__(self, config: Experiment, folder: Path, say: Callable[[str], None]):
        wandb = plugins.package(self.module, "track")
        self._file = folder / "wandb.json"
        known = {"id": uuid.uuid4().hex[:12], "rows": 0, "parts": []}
        if self._file.exists():
            known = json.loads(self._file.read_text())
        self._id, self.told, self._parts = known["id"], known["rows"], known["parts"]
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
        say(f"wandb sync {folder / 'wandb'} sends this run." if offline else f"{self._run.url}")

    def tell(self, row: Row, scalars: dict[str, float]) -> None:
        self._run.log(scalars, step=int(row["steps"]))
        self.told += 1

    def close(self) -> None:
        self._run.finish()
        self._parts = [*self._parts, Path(self._run.dir).parent.name]
        self._save()

    def _save(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"id": self._id, "rows": self.told, "parts": self._parts}))
        new.replace(self._file)


BACKENDS: dict[str, type[Backend]] = {"tensorboard": TensorBoard, "wandb": Wandb}
