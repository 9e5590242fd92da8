"""Launchers: the places where the tasks of a sweep run, and the loop that waits for them.

`local` trains in this process, one part after another. `ray` and `submitit` give each part to a
process elsewhere, all parts of a segment at once. A task whose process is lost is submitted again
and continues from its last checkpoint. An error of the user's ends the sweep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.hyper import check, static
from jaxrl.runtime import checkpoints, run_folder
from jaxrl.runtime.display import Display
from jaxrl.runtime.errors import Stopped
from jaxrl.runtime.stopping import Interrupt
from jaxrl.sweeps import tasks
from jaxrl.sweeps.tasks import Outcome, Task

ELSEWHERE = {  # launcher -> its module
    "ray": "jaxrl.sweeps.launch_ray",
    "submitit": "jaxrl.sweeps.launch_submitit",
}
LOCAL = "local"
LOST_IN_A_ROW = 3  # losses of a task without a new checkpoint in between, after which it is left
AGAIN_SECONDS = 0.2  # between two looks at the sweep's folder
SEEN_SECONDS = 60.0  # within which a finished run must be seen here; network file systems cache
SAVE_SECONDS = 600.0  # that canceled tasks have to save


@dataclasses.dataclass(frozen=True)
class Launch:
    """Options that say where the parts of a sweep run, and with which resources."""

    launcher: str = LOCAL
    """Place where the parts run: local (this process), ray, or submitit (SLURM, where there is
    one, and otherwise processes here)."""
    cpus: int = static(1, low=1)
    """CPUs of each part."""
    gpus: int = static(0, low=0)
    """GPUs of each part."""
    ram: float = static(0.0, low=0.0, high=1e6)
    """Memory of each part in GB; 0 for what its compiled program needs, as far as XLA knows."""
    hours: float = static(24.0, above=0.0, high=1e4)
    """Time limit of each job of submitit; a job that reaches it continues in another one."""
    slurm: dict[str, str] = dataclasses.field(default_factory=dict)
    """Further options of sbatch, such as partition=gpu account=lab."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """Resources of one task.

    ram: bytes of memory.
    """

    cpus: int
    gpus: int
    ram: int

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPUs and " if self.gpus else ""
        return f"{self.cpus} CPUs, {gpus}{self.ram / 1e9:.3g} GB of memory"


class Job(Protocol):
    """A task that was submitted."""

    def poll(self) -> Outcome | None:
        """Return how the task ended, None if it has not."""
        ...

    def cancel(self) -> None:
        """Ask the task to save and end, or not to begin. Called once."""
        ...

    def kill(self) -> None:
        """End the task at once."""
        ...


class Launcher(Protocol):
    """A place where tasks run."""

    at_once: int | None
    """Number of tasks that may be submitted at a time; None if the place holds a queue itself."""
    poll_seconds: float
    """Time between two polls of each job."""

    def check(self, needed: Resources) -> None:
        """Raise `UserError` if no node can ever have these resources."""
        ...

    def submit(self, task: Task, needed: Resources) -> Job:
        """Submit `tasks.run(task)`. Raises `UserError` if it is refused."""
        ...

    def close(self) -> None:
        """Leave the place, when all tasks have ended."""
        ...


def check_options(launch: Launch) -> None:
    """Raise `UserError` for options that do not exist or have no effect."""
    known = (LOCAL, *ELSEWHERE)
    if launch.launcher not in known:
        raise unknown("launcher", launch.launcher, known)
    check(launch)
    only = {"hours": ("submitit",), "slurm": ("submitit",)}
    for field in dataclasses.fields(launch)[1:]:
        value, default = getattr(launch, field.name), getattr(Launch(), field.name)
        where = only.get(field.name, tuple(ELSEWHERE))
        if value != default and launch.launcher not in where:
            raise UserError(
                f"{field.name} has no effect with --launcher {launch.launcher}; it is for "
                f"--launcher {' or '.join(where)}."
            )


@contextlib.contextmanager
def start(launch: Launch) -> Iterator[Launcher | None]:
    """Connect to the place that `launch` names; None for this process.

    Raises:
        UserError: if a package is missing, or the place cannot be reached.
    """
    check_options(launch)
    if launch.launcher == LOCAL:
        yield None
        return
    launcher: Launcher = importlib.import_module(ELSEWHERE[launch.launcher]).make(launch)
    try:
        yield launcher
    finally:
        launcher.close()


@dataclasses.dataclass
class _Submitted:
    """A task that has not ended.

    losses: how often it was lost in a row without a new checkpoint.
    step: step of its newest checkpoint when it was submitted.
    """

    task: Task
    needed: Resources
    job: Job | None = None
    losses: int = 0
    step: int = -1


def train_all(
    launcher: Launcher,
    todo: Iterable[tuple[Task, Resources]],
    on_end: Callable[[Task, str], None],
    display: Display,
) -> None:
    """Run tasks on `launcher` until all have ended; all of them have one folder and launch.

    On an interrupt, and when one of them fails, the others are asked to save and end first.

    on_end: (task, message) -> None, called after each that ended; the message is to be shown.

    Raises:
        UserError, Stopped: the error of a task, or too many losses of it.
        SystemExit: (128 + signal) after an interrupt, once all is saved.
    """
    waiting = [_Submitted(task, needed) for task, needed in todo]
    running: list[_Submitted] = []
    most, interrupt, in_use = launcher.at_once or len(waiting), Interrupt(), set()
    with interrupt.catch():
        try:
            while (waiting or running) and not interrupt.reason:
                for one in list(waiting):
                    if tasks.is_held(one.task):
                        if one.task.name not in in_use:
                            in_use.add(one.task.name)
                            name = one.task.name or one.task.folder
                            display.warn(f"{name} waits for a process that trains it.")
                    elif tasks.has_ended(Path(one.task.folder) / one.task.name):  # meanwhile
                        waiting.remove(one)
                        on_end(one.task, "")
                    elif len(running) < most:
                        one.step = _newest_step(one.task)
                        one.job = launcher.submit(one.task, one.needed)
                        waiting.remove(one)
                        running.append(one)
                for one in list(running):
                    outcome = one.job.poll() if one.job else None
                    if outcome is not None:
                        running.remove(one)
                        if outcome.kind == "ended":
                            _await_files(one.task, outcome, interrupt)
                            on_end(one.task, outcome.message)
                        else:
                            _check_retry(one, outcome, display)
                            waiting.append(one)
                time.sleep(launcher.poll_seconds if running else AGAIN_SECONDS)
            if interrupt.reason:
                display.say("Stopping the tasks, which save; interrupt again to end them at once.")
        finally:
            _cancel(running, launcher.poll_seconds)
        if interrupt.number is not None:
            raise SystemExit(128 + interrupt.number)


def _check_retry(one: _Submitted, outcome: Outcome, display: Display) -> None:
    """Return if a task that did not end is to be submitted again; otherwise raise its error."""
    name, where = one.task.name or one.task.folder, f" on {outcome.host}" if outcome.host else ""
    if outcome.kind == "user error":
        raise UserError(outcome.message)
    if outcome.kind == "stopped":
        raise Stopped(outcome.message)
    if outcome.kind == "failed":
        raise Stopped(f"{name} failed{where}: {outcome.message}")
    step = _newest_step(one.task)
    one.losses = 1 if step > one.step else one.losses + 1
    reason = outcome.message or "its process was told to end"  # such as at a time limit
    if one.losses >= LOST_IN_A_ROW:
        raise Stopped(
            f"{name} was lost {one.losses} times without a new checkpoint in between, the last time"
            f"{where}: {reason}; more may be in {tasks.log_file(one.task.folder, one.task.name)}."
        )
    again = f"from update {step}" if step >= 0 else "from its beginning"
    display.warn(f"{name} was lost{where} ({reason}); it continues {again}.")


def _newest_step(task: Task) -> int:
    """Return the step of the newest checkpoint of a task's run, -1 if it has none."""
    folder = run_folder.checkpoints(Path(task.folder) / task.name)
    return max(checkpoints.steps(folder), default=-1) if folder.is_dir() else -1


def _await_files(task: Task, outcome: Outcome, interrupt: Interrupt) -> None:
    """Wait until what a task has written is seen here too."""
    run, began = Path(task.folder) / task.name, time.monotonic()
    while not tasks.has_ended(run):
        if time.monotonic() - began > SEEN_SECONDS or interrupt.reason:
            raise UserError(
                f"'{run}' was written on {outcome.host} and is not seen here; the folder of a "
                "sweep must lie on storage that all nodes share, at one path."
            )
        time.sleep(AGAIN_SECONDS)


def _cancel(running: list[_Submitted], poll_seconds: float) -> None:
    """Ask tasks to save and end, and wait until they have; kill them on another interrupt."""
    if not running:
        return
    task = running[0].task
    marker = tasks.stop_file(task.folder, task.launch)
    jobs = [one.job for one in running if one.job]
    began = time.monotonic()
    try:
        with contextlib.suppress(OSError):
            marker.touch()
        jobs = [job for job in jobs if job.poll() is None]
        for job in jobs:
            job.cancel()
        while jobs and time.monotonic() - began < SAVE_SECONDS:
            jobs = [job for job in jobs if job.poll() is None]
            time.sleep(poll_seconds)
    finally:
        for job in jobs:
            job.kill()
        marker.unlink(missing_ok=True)


def resources(launch: Launch, ram: Callable[[], int]) -> Resources:
    """Return the resources of a task. `ram` returns its bytes, if `launch` does not say them."""
    return Resources(launch.cpus, launch.gpus, int(launch.ram * 1e9) or ram())


def first_sentence(error: Any) -> str:
    """Return the first sentence that an error of another package says, without its full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition(". ")[0].rstrip(".") if lines else type(error).__name__
