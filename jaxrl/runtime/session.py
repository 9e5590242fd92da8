"""One process's part of a run: what happens between chunks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxrl
from jaxrl.core import metrics as m
from jaxrl.core import random, shared
from jaxrl.core.types import Algorithm, Environment, Tree
from jaxrl.evaluation.statistics import mean_interval
from jaxrl.runtime import checkpoints, configuration, driver, run_folder, stopping, tracking
from jaxrl.runtime import log as logs
from jaxrl.runtime.building import plan
from jaxrl.runtime.command_line import Stopped
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.driver import Program
from jaxrl.runtime.host_program import HostProgram
from jaxrl.runtime.members import Members

DRAW_SECONDS = 30.0  # between two pictures of a run that goes on
WAYS = {"train": "in training", "evaluation": "evaluated"}  # kind of row -> where a number is from


@dataclasses.dataclass
class Session:
    """One process's part of a run: what happens between chunks."""

    config: Experiment
    algorithm: Algorithm
    evaluation_env: Environment
    program: Program | HostProgram
    members: Members
    display: Display

    def __post_init__(self):
        config = self.config
        self.plan = plan(config, self.algorithm)
        self.scores = {**self.evaluation_env.scores, **self.algorithm.scores}
        self.evaluation = self.program.evaluation(
            self.evaluation_env, config.evaluate_episodes, config.evaluate_greedy
        )
        self.seconds: dict[str, float] = {}
        self.interrupt = stopping.Interrupt()
        self.pending: list[str] = []  # what was begun at the present step and not finished
        if isinstance(self.program, HostProgram):
            self.program.stopping = lambda: self.interrupt.reason is not None
        self.diverged = np.full(len(self.members), m.NEVER)  # the update at which it began
        self.writing: Future | None = None  # the last checkpoint, which may still be on its way

    def check(self, keys: jax.Array) -> None:
        """Raises `UserError` for what would only be found while the run goes on."""
        tracking.check(self.config.track)
        shapes = self.program.shapes(keys)
        if self.plan.evaluate:
            self.program.check_evaluation(self.evaluation, shapes.run)

    def run(self, folder: Path, progress: driver.Progress, meta: dict[str, Any]) -> None:
        """From a checkpoint that was just written or read to the end of the plan."""
        self.folder, first = folder, meta["step"]
        self.saved, self.drawn = first, time.monotonic()
        self.diverged = np.asarray(meta["diverged"])
        if self.interrupt.reason:  # while it started
            self._end(self.interrupt.reason)
        if isinstance(self.program, HostProgram):
            self.display.say(self.program.notice(bool(self.config.resume)))
        with stopping.explained(folder):
            self.log = logs.Log(self._rows, first, meta["log_size"], self.display.warn)
            evaluated = [row["updates"] for row in logs.read(self._rows, "evaluation")[-1:]]
            self.pending = [] if evaluated == [first] else list(meta.get("pending", ()))
            with contextlib.closing(self.log):
                self.tracker = tracking.start(self.config, folder, self.members, self.display)
                with contextlib.closing(self.tracker), ThreadPoolExecutor(1) as self.writer:
                    progress, step, reason = self._drive(progress, first)
            stopping.check_there(folder)
            rows = logs.read(self._rows, warn=self.display.warn)
            self._draw(rows)
            self._summarize(first, step, progress, reason, rows)
        self._end(reason)

    def _drive(
        self, progress: driver.Progress, step: int
    ) -> tuple[driver.Progress, int, str | None]:
        """What `driver.drive` returns, with the last step saved."""
        with self.display.announced("Compiling", self.seconds):
            chunk = self.program.compile(progress)
            if self.plan.evaluate:
                self.evaluation = self.program.compile_evaluation(self.evaluation, progress.run)
        began = time.perf_counter()
        with self.display.running(
            self.env_steps(step), self.env_steps(self.plan.total), len(self.members)
        ):
            progress, end, reason = driver.drive(
                chunk,
                progress,
                step,
                self.plan,
                self._happen,
                self._stop,
                self._tick,
                self.pending,
                self.program.ahead,
            )
        self.seconds["training"] = time.perf_counter() - began
        if self.interrupt.reason and end == self.plan.total and not self.pending:
            reason = None  # too late to interrupt anything
        if end != self.saved:
            self._checkpoint(end, progress)()
        self._written()
        return progress, end, reason

    @property
    def _rows(self) -> Path:
        return self.folder / "metrics.jsonl"

    def env_steps(self, step: int) -> int:
        """Environment steps of each member after `step` steps of the algorithm."""
        return self.algorithm.initial_env_steps + step * self.algorithm.env_steps

    def _happen(self, name: str, step: int, progress: driver.Progress) -> Callable[[], None]:
        """Read what is due from `progress`; returns what the host is to do with it."""
        if name == "log":
            row = progress.row
            return lambda: self._write("train", step, m.values(jax.device_get(row)))
        if name == "checkpoint":
            return self._checkpoint(step, progress)
        self.pending = [name]
        played = jax.device_get(jax.block_until_ready(self.evaluation(progress.run)))
        self.pending = []
        return lambda: self._write("evaluation", step, played)

    def _write(self, kind: str, step: int, metrics: dict[str, Any]) -> None:
        metrics = {name: np.atleast_1d(x) for name, x in metrics.items()}
        if "diverged" in metrics:
            at = metrics["diverged"]
            metrics["diverged"] = np.where(at == m.NEVER, np.nan, at)
        self._show(kind, metrics)
        row = {
            "kind": kind,
            "steps": self.env_steps(step),
            "updates": step,
            "time": time.time(),
            "metrics": metrics,
        }
        self.log.write(row)
        self.tracker.write(row)

    def _show(self, kind: str, metrics: Mapping[str, Any]) -> None:
        names = logs.judged_by(kind, metrics, self.scores)
        number = lambda x: np.asarray(x.value() if m.is_metric(x) else x, float)
        values = {label: np.atleast_1d(number(metrics[name])) for label, name in names.items()}
        self.display.show(values, kind == "evaluation")

    def _stop(self, step: int, progress: driver.Progress) -> str | None:
        if self.interrupt.reason:
            self.display.say("Stopping and saving; once more to stop at once ...")
            return self.interrupt.reason
        at = driver.diverged(progress.row)
        for member in np.flatnonzero((at != m.NEVER) & (self.diverged == m.NEVER)):
            if len(at) > 1:
                self.display.warn(
                    f"{self.members.name(int(member))}: a loss was not finite after {at[member]} "
                    "updates; this one is frozen, the others go on."
                )
        self.diverged = np.minimum(self.diverged, at)
        return "not finite" if np.all(self.diverged != m.NEVER) else None

    def _tick(self, step: int, progress: driver.Progress) -> None:
        if not self.plan.due("log", step):
            self._show("train", progress.row)
        self.display.tick(self.env_steps(step))
        if self.writing is not None and self.writing.done():
            self._written()

    def _checkpoint(self, step: int, progress: driver.Progress) -> Callable[[], None]:
        """Copy what is to be saved; returns what has it written while the run goes on. There is one
        copy at a time: the next checkpoint waits for this one."""
        self._written()
        copy = checkpoints.copied(shared.strip(progress))
        diverged, pending = self.diverged.tolist(), self.pending

        def write() -> None:
            stopping.check_there(self.folder)
            size = self.log.size()  # the rows until now
            self.writing = self.writer.submit(
                self.save, self.folder, copy, step, size, diverged, pending
            )
            self.saved = step
            if not self.program.ahead:
                self._written()
            if time.monotonic() - self.drawn > DRAW_SECONDS:
                self._draw(logs.read(self._rows, warn=lambda said: None))  # it is said at the end

        return write

    def _written(self) -> None:
        """Until the last checkpoint is on the disk. Raises what kept it from there."""
        if self.writing is not None:
            writing, self.writing = self.writing, None
            writing.result()

    def save(
        self,
        folder: Path,
        progress: Tree,
        step: int,
        log_size: int,
        diverged: list[int],
        pending: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Write a checkpoint of `progress` (`shared.strip`, perhaps copied before); returns what it
        says of itself."""
        meta = {
            "step": step,
            "log_size": log_size,
            "members": len(self.members),
            "diverged": diverged,
            "pending": list(pending),
            "settings": configuration.to_dict(self.config),
            "jaxrl": jaxrl.__version__,
            "jax": jax.__version__,
        }
        path = run_folder.checkpoints(folder)
        checkpoints.save(path, step, progress, meta, keep=self.config.keep)
        return meta

    def _draw(self, rows: list[dict[str, Any]]) -> None:
        """Draw the log's rows. A picture that cannot be written is no reason to stop."""
        self.drawn = time.monotonic()
        curves = logs.curves(rows, self.scores)
        if not curves:
            return
        from jaxrl.evaluation.curve_plots import panels_of_curves

        groups = self.members.settings()
        path = self.folder / "learning_curve.png"
        panels = {
            label: {
                WAYS[kind]: {
                    name or self.config.algorithm: (steps, values[i]) for name, i in groups.items()
                }
                for kind, (steps, values) in kinds.items()
            }
            for label, kinds in curves.items()
        }
        try:
            panels_of_curves(panels, path, title=f"{self.config.algorithm} on {self.config.env}")
        except OSError as error:
            self.display.warn(f"'{path}' cannot be written: {error.strerror}.")

    def _summarize(
        self,
        first: int,
        step: int,
        progress: driver.Progress,
        reason: str | None,
        rows: list[dict[str, Any]],
    ) -> None:
        """Write summary.json. `steps_per_second` are environment steps of all members together,
        over the time of training, evaluations included, in this process alone."""
        evaluations = [row for row in rows if row["kind"] == "evaluation"]
        trained = (step - first) * self.algorithm.env_steps * len(self.members)
        summary = {
            "finished": reason is None,
            "stopped_because": reason,
            "steps": self.env_steps(step),
            "updates": step,
            "members": self.members.labels,
            "return": None if self.members.hyper else _final(_last(evaluations, "return")),
            "returns": _last(evaluations, "return"),
            "scores": None if self.members.hyper else finals(logs.curves(rows, self.scores)),
            "steps_per_second": trained / max(self.seconds["training"], 1e-9),
            "seconds": self.seconds,
            "diverged": {
                str(i): int(self.diverged[i]) for i in np.flatnonzero(self.diverged != m.NEVER)
            },
            "versions": {
                "jaxrl": jaxrl.__version__,
                "jax": jax.__version__,
                "python": platform.python_version(),
            },
            "device": jax.devices()[0].device_kind,
            "generator": random.generator_name(progress.run.key),
        }
        (self.folder / "summary.json").write_text(json.dumps(logs.jsonable(summary), indent=2))
        self.summary = summary

    def _end(self, reason: str | None) -> None:
        if reason is None:
            if scores := self.summary["scores"]:
                said = [self._final_of(label, final) for label, final in scores.items()]
                self.display.say(f"Final {' · '.join(said)}.")
            self.display.say(f"Saved in {self.folder}")
        elif reason == "not finite":
            at = int(self.diverged.min())
            raise stopping.NotFinite(
                f"A loss was not finite after {at} updates ({self.env_steps(at)} environment "
                f"steps); the state before it is saved in {run_folder.checkpoints(self.folder)}. "
                "Run again with --debug to see where it began."
            )
        elif self.interrupt.number is not None:
            self.display.warn(f"{reason}: saved. Go on with {run_folder.to_resume(self.folder)}")
            raise SystemExit(128 + self.interrupt.number)
        else:
            updates = self.summary["updates"]
            raise Stopped(
                f"{reason.removesuffix('.')}; the state after {updates} updates "
                f"({self.env_steps(updates)} environment steps) is saved in "
                f"{run_folder.checkpoints(self.folder)}, go on with "
                f"{run_folder.to_resume(self.folder)}."
            )

    def _final_of(self, label: str, final: dict[str, Any]) -> str:
        low, high = final["interval"] or (np.nan, np.nan)
        spread = f" (95 % interval {low:.5g} to {high:.5g})" if final["interval"] else ""
        own = label in self.algorithm.scores.values()  # the same wherever it is reported
        way = "" if own or final["kind"] == "evaluation" else f" {WAYS[final['kind']]}"
        return f"{label} {final['mean']:.5g}{spread}{way}"


def _last(evaluations: list[dict[str, Any]], name: str) -> list[float] | None:
    """Each member's value of a metric in the last evaluation; None without any."""
    values = logs.series(evaluations[-1:], name)[1]
    return values[:, -1].tolist() if values.size else None


def finals(curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]) -> dict[str, Any]:
    """`_final` of the last values of `logs.curves`: of the last evaluation where there is one, else
    of the last row in which an episode ended; with the kind of that row."""
    found = {}
    for label, kinds in curves.items():
        kind = "evaluation" if "evaluation" in kinds else "train"
        values = kinds[kind][1]
        if kind == "train":
            values = values[:, np.isfinite(values).any(0)]
        if final := _final(values[:, -1]):
            found[label] = final | {"kind": kind}
    return found


def _final(values: Any) -> dict[str, Any] | None:
    """Mean of the `values` of seeds and its 95 % interval, None for a single one; None where there
    is no value."""
    values = np.asarray([] if values is None else values, float)
    values = values[np.isfinite(values)]
    if values.size == 0:
        return None
    mean, low, high = mean_interval(values)
    interval = [low, high] if values.size > 1 else None
    return {"mean": mean, "interval": interval, "seeds": values.size}
