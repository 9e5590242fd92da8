"""Parts of a sweep as jobs of SLURM through submitit (extra `slurm`)."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxrl.core import plugins
from jaxrl.core.errors import UserError
from jaxrl.sweeps import memory, tasks
from jaxrl.sweeps.launching import Launch, Resources, first_sentence
from jaxrl.sweeps.tasks import Outcome, Task

FOLDER = "submitit"  # in the sweep's folder: what submitit writes about the jobs
ASK_SECONDS = 30.0  # between two questions to SLURM which jobs it still has
CANCELED_SECONDS = 4.0  # the same when jobs were canceled


def make(launch: Launch) -> Submitit:
    """Return the launcher for SLURM if this machine has it, and otherwise for processes here.

    Raises `UserError` if submitit is not installed.
    """
    return Submitit(plugins.package("submitit", "slurm"), launch)


class Submitit:
    """SLURM, which queues the jobs; without it, as many processes as fit this machine."""

    def __init__(self, submitit: Any, launch: Launch):
        self._submitit, self._launch = submitit, launch
        self._executor: Any = None
        self._asked = time.monotonic()  # when SLURM was asked for the states of all jobs
        self._is_slurm = submitit.AutoExecutor.which() == "slurm"
        self.at_once = None if self._is_slurm else self._processes(launch)
        self.poll_seconds = 2.0 if self._is_slurm else 0.2  # it looks for files on shared storage

    @staticmethod
    def _processes(launch: Launch) -> int:
        # Without SLURM every job is given the first GPUs.
        return 1 if launch.gpus else max(1, (os.cpu_count() or 1) // launch.cpus)

    def check(self, needed: Resources) -> None:
        if self._is_slurm:  # it refuses what no node has when a job is submitted
            return
        ram = memory.total()
        here = Resources(os.cpu_count() or 1, len(glob.glob("/dev/nvidia[0-9]*")), ram or 0)
        fits = needed.cpus <= here.cpus and needed.gpus <= here.gpus
        if not fits or (ram is not None and needed.ram > ram):
            raise UserError(f"This machine has no {needed}; it has {here}, and no SLURM.")
        if ram is not None and self.at_once:
            self.at_once = max(1, min(self.at_once, ram // needed.ram))

    def submit(self, task: Task, needed: Resources) -> SubmititJob:
        try:
            if self._executor is None:
                folder = Path(task.folder).absolute() / FOLDER
                self._executor = self._submitit.AutoExecutor(folder)
            self._executor.update_parameters(
                name=task.name,
                timeout_min=max(1, int(60 * self._launch.hours)),
                cpus_per_task=needed.cpus,
                gpus_per_node=needed.gpus or None,
                mem_gb=needed.ram / 2**30,
                **{f"slurm_{name}": value for name, value in self._launch.slurm.items()},
            )
            with _without_interrupts():
                job = self._executor.submit(_run, task)
        except (NameError, self._submitit.core.utils.FailedSubmissionError) as error:
            raise _refusal(error, needed) from error
        except self._submitit.core.utils.FailedJobError as error:  # sbatch's own words
            raise _refusal(error, needed) from error
        return SubmititJob(self._submitit, job, self._is_slurm, self._is_time_to_ask)

    def _is_time_to_ask(self, seconds: float) -> bool:
        """Return whether SLURM was last asked so many seconds ago; if so, it is asked now."""
        now = time.monotonic()
        is_time = now - self._asked > seconds
        self._asked = now if is_time else self._asked
        return is_time

    def close(self) -> None:
        pass


def _refusal(error: Exception, needed: Resources) -> UserError:
    return UserError(f"SLURM takes no job with {needed}: {first_sentence(error)}.")


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from processes that are started meanwhile: they are told to end by SIGTERM."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(task: Task) -> Outcome:
    """Run a task. One that is about to reach its time limit, or to be preempted, saves and ends.

    submitit would queue it again as it is, with what it has saved so far.
    """
    preempted = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}")
    signal.signal(preempted, lambda number, frame: signal.raise_signal(signal.SIGTERM))
    return tasks.run(task)


class SubmititJob:
    """A job that was submitted."""

    def __init__(
        self, submitit: Any, job: Any, is_slurm: bool, is_time_to_ask: Callable[[float], bool]
    ):
        self._failures, self._job, self._is_slurm = submitit.core.utils, job, is_slurm
        self._is_time_to_ask = is_time_to_ask
        self._is_canceled = False

    def poll(self) -> Outcome | None:
        # By itself, submitit asks SLURM every ten minutes. An answer is about all jobs.
        force = self._is_time_to_ask(CANCELED_SECONDS if self._is_canceled else ASK_SECONDS)
        if not self._job.done(force_check=force):
            return None
        try:
            return self._job.result()
        except self._failures.FailedJobError as error:
            # `tasks.run` catches everything, so this happened outside of it.
            lines = [line for line in str(error).splitlines() if line.strip()]
            said = next((x for x in reversed(lines) if "Error" in x), lines[0])
            return Outcome("failed", said.strip().rstrip("."))
        except self._failures.UncompletedJobError:
            if self._is_canceled:
                return Outcome("interrupted")
            state = self._job.state
            return Outcome("lost", f"job {self._job.job_id} ended without a result, as {state}")

    def cancel(self) -> None:
        self._is_canceled = True
        self._terminate()

    def kill(self) -> None:
        self._terminate()  # a second time, at which a task does not save

    def _terminate(self) -> None:
        if self._is_slurm:  # SIGTERM, and later SIGKILL
            self._job.cancel(check=False)
        else:  # its `cancel` leaves a process one second; its own process hands on this signal
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self._job.job_id), signal.SIGTERM)
