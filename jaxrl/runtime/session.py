"""One process's part of a run: the work between chunks."""

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
from jaxrl.core.errors import UserError
from jaxrl.core.types import Algorithm, Environment, Tree
from jaxrl.evaluation import render
from jaxrl.evaluation.statistics import confidence_text, score_interval
from jaxrl.runtime import (
    checkpoints,
    configuration,
    driver,
    files,
    host,
    placement,
    processes,
    run_folder,
    stopping,
    tracking,
)
from jaxrl.runtime import log as logs
from jaxrl.runtime.building import check_compute, plan
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.driver import Program
from jaxrl.runtime.errors import Stopped
from jaxrl.runtime.host_program import HostProgram
from jaxrl.runtime.members import Members

DRAW_SECONDS = 30.0  # between two drawings of the learning curves during a run
DRAWN_ROWS = 1_000  # of each kind in such a drawing, so that it does not grow with the log
SOURCES = {"train": "in training", "evaluation": "evaluated"}  # kind of row -> origin of a number


@dataclasses.dataclass
class Session:
    """One process's part of a run: the work between chunks."""

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
        self.pending: list[str] = []  # events started at the present step and not finished
        if isinstance(self.program, HostProgram):
            self.program.stopping = lambda: self.interrupt.reason is not None
        self.diverged = np.full(len(self.members), m.NEVER)  # the update at which each diverged
        self.writing: Future | None = None  # the last checkpoint, perhaps still being written

    def check(self, keys: jax.Array) -> None:
        """Raise `UserError` for faults that would otherwise appear only during the run."""
        tracking.check(self.config.track)
        shapes = self.program.shapes(keys)
        check_compute(self.config, self.algorithm)
        if self.plan.evaluate:
            self._check_time_limit("with --evaluate-every -1")
            self.program.check_evaluation(self.evaluation, shapes.run)
        if self.plan.record:
            self._check_recording()

    def _check_time_limit(self, how: str) -> None:
        """Raise `UserError` if episodes need not end; `how` to train where they are not played."""
        env = self.evaluation_env
        if env.max_steps is None:
            name, setting = "time_limit", "max_steps"
            if env.host:
                name, setting = "gymnasium/TimeLimit", "max_episode_steps"
            raise UserError(
                f"'{env.name}' has no time limit, so its episodes need not end; give it one, such "
                f"as --wrappers '[{{{name}: {{{setting}: 1000}}}}]', or train {how}."
            )

    def _check_recording(self) -> None:
        """Raise `UserError` if no video of an episode can be made."""
        env = self.evaluation_env
        refused = f"record_every is {self.config.record_every}, but '{env.name}' draws no pictures"
        if env.render is None and env.host is None:
            raise UserError(f"{refused}.")
        self._check_time_limit("without --record-every")
        render.check_video_format(self.config.video)
        if env.host:
            try:
                host.check_pictures(env)
            except (host.EnvironmentFailed, UserError) as failed:
                raise UserError(f"{refused}: {failed}") from failed

    def run(self, folder: Path, progress: driver.Progress, meta: dict[str, Any]) -> None:
        """Run from a checkpoint that was just written or read to the end of the plan."""
        self.folder, first = folder, meta["step"]
        self.saved, self.drawn = first, time.monotonic()
        self.diverged = np.asarray(meta["diverged"])
        processes.advise(folder)
        if reason := self.interrupt.agree():  # during the start
            self._end(reason)
        if isinstance(self.program, HostProgram):
            self.display.say(self.program.notice(bool(self.config.resume)))
        elif self.program.layout:
            for line in placement.describe(progress, self.program.layout):
                self.display.say(line)
        with stopping.explain_failures(folder):
            with contextlib.ExitStack() as held:
                if processes.is_first():
                    self._open(held, first, meta["log_size"])
                self.pending = processes.from_first(lambda: self._pending_events(meta))
                progress, step, reason = self._drive(progress, first)
            if isinstance(self.program, HostProgram):
                self.program.close()
            if processes.is_first():
                stopping.check_exists(folder)
                rows = logs.read(self._rows, warn=self.display.warn)
                self._draw(rows)
                self._summarize(first, step, progress, reason, rows)
        processes.align()
        self._end(reason)

    def _open(self, held: contextlib.ExitStack, step: int, log_size: int) -> None:
        """Open what the run writes to, until `held` is closed."""
        self.log = logs.Log(self._rows, step, log_size, self.display.warn)
        held.enter_context(contextlib.closing(self.log))
        self.tracker = tracking.start(self.config, self.folder, self.members, self.display)
        held.enter_context(contextlib.closing(self.tracker))
        self.writer = held.enter_context(ThreadPoolExecutor(1))

    def _pending_events(self, meta: dict[str, Any]) -> list[str]:
        """Return the events at the checkpoint's step that are not in the log yet."""
        evaluated = [row["updates"] for row in logs.read(self._rows, "evaluation")[-1:]]
        return [] if evaluated == [meta["step"]] else list(meta.get("pending", ()))

    def _drive(
        self, progress: driver.Progress, step: int
    ) -> tuple[driver.Progress, int, str | None]:
        """Drive the run and save its last step; return what `driver.drive` returns."""
        if isinstance(self.program, HostProgram):
            self.display.say("The first update waits for compilation.")
            self.seconds["compiling"] = 0.0  # part of the training's
            compiling = contextlib.nullcontext()
        else:
            compiling = self.display.announce("Compiling", self.seconds)
        with compiling:
            chunk = self.program.compile(progress)
            if self.plan.evaluate:
                self.evaluation = self.program.compile_evaluation(self.evaluation, progress.run)
        began = time.perf_counter()
        with self.display.progress(
            self.env_steps(step), self.env_steps(self.plan.total), len(self.members)
        ):
            progress, end, reason = driver.drive(
                chunk,
                progress,
                step,
                self.plan,
                self._on_event,
                self._stop,
                self._on_chunk,
                self.pending,
                self.program.ahead,
            )
        self.seconds["training"] = time.perf_counter() - began
        is_interrupt = reason is not None and reason == self.interrupt.reason
        if is_interrupt and end == self.plan.total and not self.pending:
            reason = None  # too late to interrupt anything
        if end != self.saved:
            self._checkpoint(end, progress)()
        self._finish_writing()
        return progress, end, reason

    @property
    def _rows(self) -> Path:
        return self.folder / "metrics.jsonl"

    def env_steps(self, step: int) -> int:
        """Return the environment steps of each member after `step` steps of the algorithm."""
        return self.algorithm.initial_env_steps + step * self.algorithm.env_steps

    def _on_event(self, name: str, step: int, progress: driver.Progress) -> Callable[[], None]:
        """Read what the event needs from `progress`, and return the host's remaining work."""
        if name == "log":
            several = processes.count() > 1
            row = processes.fetch(progress.row) if several else progress.row
            return lambda: self._write("train", step, m.values(jax.device_get(row)))
        if name == "checkpoint":
            return self._checkpoint(step, progress)
        if name == "record":
            return self._record(step, progress)
        self.pending = [name]
        played = processes.fetch(jax.block_until_ready(self.evaluation(progress.run)))
        self.pending = []
        return lambda: self._write("evaluation", step, played)

    def _record(self, step: int, progress: driver.Progress) -> Callable[[], None]:
        """Record a greedy episode of the first member; return a function that writes its video."""
        run, env = processes.localize(progress.run), self.evaluation_env
        if not processes.is_first():
            return lambda: None
        if self.program.members is not None:
            run = shared.member(run, 0)
        policy = self.algorithm.policy(run.state)
        key = jax.random.fold_in(driver.evaluation_key(run), 2)
        if env.host:
            stopping = lambda: self.interrupt.reason is not None
            episode = host.record(env, policy, key, stopping=stopping)
        else:
            episode = render.record(env, policy, key)
        path = self.folder / "videos" / f"{self.env_steps(step)}.{self.config.video}"
        return lambda: render.write_video(episode, path)

    def _write(self, kind: str, step: int, metrics: dict[str, Any]) -> None:
        if not processes.is_first():
            return
        metrics = {name: np.atleast_1d(x) for name, x in metrics.items()}
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
        names = logs.score_names(kind, metrics, self.scores)
        number = lambda x: np.asarray(x.value() if m.is_metric(x) else x, float)
        values = {label: np.atleast_1d(number(metrics[name])) for label, name in names.items()}
        self.display.show(values, kind == "evaluation")

    def _stop(self, step: int, progress: driver.Progress) -> str | None:
        if reason := self.interrupt.agree():
            self.display.say("Stopping and saving; interrupt again to stop at once ...")
            return reason
        at = driver.diverged_at(progress.row)
        for member in np.flatnonzero((at != m.NEVER) & (self.diverged == m.NEVER)):
            if len(at) > 1:
                self.display.warn(
                    f"{self.members.name(int(member))}: a loss was not finite after {at[member]} "
                    "updates; this member is frozen, the others continue."
                )
        self.diverged = np.minimum(self.diverged, at)
        return "not finite" if np.all(self.diverged != m.NEVER) else None

    def _on_chunk(self, step: int, progress: driver.Progress) -> None:
        if not self.plan.is_due("log", step):
            several = processes.count() > 1
            self._show("train", processes.fetch(progress.row) if several else progress.row)
        self.display.advance(self.env_steps(step))
        if self.writing is not None and self.writing.done():
            self._finish_writing()

    def _checkpoint(self, step: int, progress: driver.Progress) -> Callable[[], None]:
        """Copy what is to be saved, and return a function that writes it while the run continues.

        There is one copy at a time: the next checkpoint waits for this one.
        """
        self._finish_writing()
        copy = checkpoints.copy_to_host(shared.strip(progress))
        diverged, pending = self.diverged.tolist(), self.pending

        def write() -> None:
            self.saved = step
            if not processes.is_first():
                return
            stopping.check_exists(self.folder)
            size = self.log.size()  # with all rows up to now
            self.writing = self.writer.submit(
                self.save, self.folder, copy, step, size, diverged, pending
            )
            if not self.program.ahead:
                self._finish_writing()
            if time.monotonic() - self.drawn > DRAW_SECONDS:
                quiet = lambda warning: None  # `run` warns at the end
                self._draw(logs.read(self._rows, warn=quiet, most=DRAWN_ROWS))

        return write

    def _finish_writing(self) -> None:
        """Wait until the last checkpoint is on the disk. Raises the error that prevented it."""
        if self.writing is not None:
            writing, self.writing = self.writing, None
            writing.result()

    def begin(self, folder: Path, progress: Tree, step: int) -> dict[str, Any]:
        """Write the settings and the first checkpoint of a new run, and return its meta."""
        configuration.write(self.config, folder / "config.yaml")
        self.members.write(folder / "members.json")
        return self.save(folder, progress, step, 0, self.diverged.tolist())

    def save(
        self,
        folder: Path,
        progress: Tree,
        step: int,
        log_size: int,
        diverged: list[int],
        pending: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Write a checkpoint of `progress` (`shared.strip`, or a copy) and return its meta."""
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
        """Draw the log's rows. A picture that cannot be written does not stop the run."""
        self.drawn = time.monotonic()
        curves = logs.curves(rows, self.scores)
        if not curves:
            return
        from jaxrl.evaluation.curve_plots import panels_of_curves

        groups = self.members.by_setting()
        path = self.folder / "learning_curve.png"
        panels = {
            label: {
                SOURCES[kind]: {
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
        """Write summary.json.

        `steps_per_second` counts environment steps of all members together, over the time of
        training with evaluations, in this process only.
        """
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
            "scores": None if self.members.hyper else final_scores(logs.curves(rows, self.scores)),
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
        files.write_text(
            self.folder / "summary.json", json.dumps(logs.to_jsonable(summary), indent=2)
        )
        self.summary = summary

    def _end(self, reason: str | None) -> None:
        if reason is None:
            if not processes.is_first():
                return
            if scores := self.summary["scores"]:
                texts = [self._final_text(label, final) for label, final in scores.items()]
                self.display.say(f"Final {' · '.join(texts)}.")
            self.display.say(f"Saved in {self.folder}")
        elif reason == "not finite":
            at = int(self.diverged.min())
            raise stopping.NotFinite(
                f"A loss was not finite after {at} updates ({self.env_steps(at)} environment "
                f"steps); the state before it is saved in {run_folder.checkpoints(self.folder)}. "
                "Run again with --debug to see where it began."
            )
        elif self.interrupt.number is not None:
            resume = run_folder.resume_command(self.folder)
            self.display.warn(f"{reason}: saved. Continue with {resume}")
            raise SystemExit(128 + self.interrupt.number)
        else:
            updates = self.summary["updates"]
            raise Stopped(
                f"{reason.removesuffix('.')}; the state after {updates} updates "
                f"({self.env_steps(updates)} environment steps) is saved in "
                f"{run_folder.checkpoints(self.folder)}; continue with "
                f"{run_folder.resume_command(self.folder)}"
            )

    def _final_text(self, label: str, final: dict[str, Any]) -> str:
        low, high = final["interval"] or (np.nan, np.nan)
        confidence = confidence_text(final["seeds"])
        ends = f" ({confidence} interval {low:.5g} to {high:.5g})"
        spread = ends if final["interval"] else ""
        own = label in self.algorithm.scores.values()  # the same in training and evaluation
        source = "" if own or final["kind"] == "evaluation" else f" {SOURCES[final['kind']]}"
        return f"{label} {final['mean']:.5g}{spread}{source}"


def _last(evaluations: list[dict[str, Any]], name: str) -> list[float] | None:
    """Return each member's value of a metric in the last evaluation, or None."""
    values = logs.series(evaluations[-1:], name)[1]
    return values[:, -1].tolist() if values.size else None


def final_scores(curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]) -> dict[str, Any]:
    """Return the final mean and interval of each score in `logs.curves`, and the kind of its row.

    They are those of the last evaluation, or else of the last row in which an episode ended.
    """
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
    """Return mean and interval (`score_interval`) of the `values` of seeds; None if there are none.

    The interval of a single value is None.
    """
    values = np.asarray([] if values is None else values, float)
    values = values[np.isfinite(values)]
    if values.size == 0:
        return None
    mean, low, high = score_interval(values)
    interval = [low, high] if values.size > 1 else None
    return {"mean": mean, "interval": interval, "seeds": values.size}
