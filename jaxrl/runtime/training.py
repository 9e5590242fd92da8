"""From an Experiment to a trained run in a folder, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxrl
from jaxrl import envs
from jaxrl.agents import registry as algorithms
from jaxrl.core import hyper as hyperparameters
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Algorithm, Environment, Policy
from jaxrl.evaluation.statistics import mean_interval
from jaxrl.runtime import checkpoints, configuration, driver, run_folder
from jaxrl.runtime import log as logs
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.driver import Plan, Program

INTERRUPTED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class NotFinite(Exception):
    """A run's loss was no longer finite; the message says since when and where its state lies."""


CheckFailed = driver.CheckFailed


# ------------------------------------------------------------------------- building


def build(config: Experiment) -> tuple[Environment, Algorithm]:
    """The environment and the algorithm that `config` describes. Raises `UserError`."""
    env = envs.make(config.env, **config.env_params)
    builder, _ = algorithms.builder(config.algorithm)
    algorithm = builder(env, config.agent)
    shards = getattr(config.agent, "num_shards", 1)
    if shards % config.devices:
        raise UserError(
            f"devices is {config.devices}, which does not divide agent.num_shards={shards}."
        )
    return env, algorithm


def plan(config: Experiment, algorithm: Algorithm) -> Plan:
    """The schedule of `config` in whole steps of `algorithm`."""
    updates = lambda steps: max(1, math.ceil(steps / algorithm.frames))
    total = updates(config.steps - algorithm.initial_frames)

    def every(steps: int, share: int) -> int:
        return 0 if steps < 0 else updates(steps) if steps else max(1, total // share)

    return Plan(
        total,
        every(config.log_every, 100),
        every(config.evaluate_every, 10),
        every(config.checkpoint_every, 10),
    )


@dataclasses.dataclass(frozen=True)
class Members:
    """What is trained side by side in one program, each with a seed and hypers of its own."""

    labels: list[dict[str, float]]  # for each member: its seed, and what else sets it apart
    hyper: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # name -> [members]

    def __len__(self) -> int:
        return len(self.labels)

    def keys(self, generator: str) -> jax.Array:
        """A key for each member [members]; a single one has no leading axis."""
        seeds = np.asarray([label["seed"] for label in self.labels], np.uint32)
        make = lambda seed: random.key(seed, generator)
        return make(int(seeds[0])) if len(self) == 1 else jax.vmap(make)(seeds)

    def own_hyper(self) -> dict[str, np.ndarray]:
        """The hypers as `Program.start` takes them."""
        return {k: v[0] for k, v in self.hyper.items()} if len(self) == 1 else self.hyper

    def write(self, path: Path) -> None:
        hyper = {name: values.tolist() for name, values in self.hyper.items()}
        path.write_text(json.dumps({"labels": self.labels, "hyper": hyper}))

    @staticmethod
    def read(path: Path) -> Members:
        data = json.loads(path.read_text())
        hyper = {name: np.asarray(v, np.float32) for name, v in data["hyper"].items()}
        return Members(data["labels"], hyper)


def seeds(config: Experiment) -> Members:
    """A member for each of the configuration's seeds."""
    return Members([{"seed": config.seed + i} for i in range(config.seeds)])


def members_of(folder: Path) -> Members:
    """The members of the run in `folder`. Raises `UserError` if they cannot be read."""
    try:
        return Members.read(folder / "members.json")
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"'{folder / 'members.json'}' cannot be read: {error}.") from error


def program(config: Experiment, algorithm: Algorithm, members: Members) -> Program:
    width = len(members) if len(members) > 1 else None
    return Program(algorithm, width, config.devices, config.debug)


# ------------------------------------------------------------------------- training


def train(config: Experiment, members: Members | None = None) -> Path:
    """Train as `config` says, or go on with `config.resume`. Returns the run's folder.

    members: what is trained side by side; the configuration's seeds unless said.

    Raises `UserError` for input that cannot work, `NotFinite` if the losses of all members are no
    longer finite, and `SystemExit` (128 + signal) after an interrupt, when all is saved.
    """
    display = Display(config.quiet)
    prepare(config)
    if config.resume:
        members = members_of(run_folder.check(config.resume))
    members = members or seeds(config)
    # The run's folder says which generator it was, whatever device it is resumed on.
    generator = random.generator_name(random.key(0, config.generator))
    config = dataclasses.replace(config, generator=generator)
    env, algorithm = build(config)
    evaluation_env = envs.make(config.evaluate_env) if config.evaluate_env else env
    prog = program(config, algorithm, members)
    keys = members.keys(generator)
    if config.debug:
        display.say("debug: every number and index is checked, which is slow.")

    if config.resume:
        folder = run_folder.check(config.resume)
    else:
        # Everything that can be wrong is known before a folder is made.
        parent = _parent(config, prog, members)
        folder = run_folder.create(config.out, config.name, f"{config.algorithm}-{_slug(env.name)}")
    with run_folder.locked(folder):
        if config.resume:
            progress, step, size = _resume(folder, prog, keys, display)
        else:
            configuration.write(config, folder / "config.yaml")
            members.write(folder / "members.json")
            progress, step = parent or (prog.start(keys, members.own_hyper()), 0)
            size = 0
        _Session(config, algorithm, evaluation_env, prog, members, folder, display).run(
            progress, step, size
        )
    return folder


def prepare(config: Experiment) -> None:
    """Settings of JAX that have to be made before it computes anything."""
    if config.deterministic:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
    if jax.config.jax_compilation_cache_dir is None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(cache) / "jaxrl" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@dataclasses.dataclass
class _Session:
    """One process's part of a run: what happens between chunks."""

    config: Experiment
    algorithm: Algorithm
    evaluation_env: Environment
    program: Program
    members: Members
    folder: Path
    display: Display

    def run(self, progress: driver.Progress, step: int, log_size: int) -> None:
        self.plan = plan(self.config, self.algorithm)
        self.seconds: dict[str, float] = {}
        self.signal: int | None = None
        self.diverged = np.full(len(self.members), m.NEVER)  # the update at which it began
        self.log = logs.Log(self.folder / "metrics.jsonl", log_size)
        with self._signals():
            if step == 0 and not self.config.resume:
                self._save(step, progress)
            with self.display.announced("Compiling", self.seconds):
                chunk = self.program.compile(progress)
            began = time.perf_counter()
            with self.display.running(
                self.env_steps(step), self.env_steps(self.plan.total), len(self.members)
            ):
                progress, end, reason = driver.drive(
                    chunk, progress, step, self.plan, self._happen, self._stop, self._tick
                )
            self.seconds["training"] = time.perf_counter() - began
            if reason:
                self._save(end, progress)
            self._draw()
            self._summarise(step, end, progress, reason)
        self.log.close()
        self._end(reason)

    def env_steps(self, step: int) -> int:
        """Environment steps of each member after `step` steps of the algorithm."""
        return self.algorithm.initial_frames + step * self.algorithm.frames

    def _happen(self, name: str, step: int, progress: driver.Progress) -> None:
        if name == "log":
            row = jax.device_get(m.values(progress.row))
            self._write("train", step, {k: np.atleast_1d(v) for k, v in row.items()})
        elif name == "evaluate":
            played = self.program.evaluate(
                self.evaluation_env,
                progress.run,
                self.config.evaluate_episodes,
                self.config.evaluate_greedy,
            )
            self._write("evaluation", step, played)
        elif name == "checkpoint":
            self._save(step, progress)
            self._draw()

    def _write(self, kind: str, step: int, metrics: dict[str, np.ndarray]) -> None:
        if "diverged" in metrics:
            at = metrics["diverged"]
            metrics["diverged"] = np.where(at == m.NEVER, np.nan, at)
        score = metrics.get("episode_return", metrics.get("return"))
        if score is not None and kind == "train":
            self.display.score(np.asarray(score, float))
        self.log.write(
            {
                "kind": kind,
                "steps": self.env_steps(step),
                "updates": step,
                "seconds": time.time(),
                "metrics": metrics,
            }
        )

    def _stop(self, step: int, progress: driver.Progress) -> str | None:
        if self.signal is not None:
            return INTERRUPTED[signal.Signals(self.signal)]
        at = driver.diverged(progress.row)
        for member in np.flatnonzero((at != m.NEVER) & (self.diverged == m.NEVER)):
            if len(at) > 1:
                self.display.say(
                    f"Member {self.members.labels[member]}: a loss was not finite at update "
                    f"{at[member]}; this one is frozen, the others go on."
                )
        self.diverged = np.minimum(self.diverged, at)
        return "not finite" if np.all(self.diverged != m.NEVER) else None

    def _tick(self, step: int, progress: driver.Progress) -> None:
        if not self.plan.due("log", step):
            score = progress.row.get("episode_return")
            if score is not None:
                self.display.score(np.atleast_1d(np.asarray(score.value())))
        self.display.tick(self.env_steps(step))

    def _save(self, step: int, progress: driver.Progress) -> None:
        meta = {
            "step": step,
            "log_size": self.log.size(),
            "members": len(self.members),
            "jaxrl": jaxrl.__version__,
            "jax": jax.__version__,
        }
        folder = run_folder.checkpoints(self.folder)
        checkpoints.save(folder, step, progress, meta, keep=self.config.keep)

    def _draw(self) -> None:
        rows = logs.read(self.folder / "metrics.jsonl", "train")
        steps, values = logs.series(rows, "episode_return")
        if values.size == 0:
            return
        from jaxrl.evaluation.plots import learning_curves

        learning_curves(
            {self.config.algorithm: (steps, values)},
            self.folder / "learning_curve.png",
            title=f"{self.config.algorithm} on {self.config.env}",
        )

    def _summarise(
        self, first: int, step: int, progress: driver.Progress, reason: str | None
    ) -> None:
        evaluations = logs.read(self.folder / "metrics.jsonl", "evaluation")
        trained = (step - first) * self.algorithm.frames * len(self.members)
        summary = {
            "finished": reason is None,
            "stopped_because": reason,
            "steps": self.env_steps(step),
            "updates": step,
            "members": self.members.labels,
            "return": _final(evaluations, "return"),
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
        (self.folder / "summary.json").write_text(json.dumps(logs._jsonable(summary), indent=2))
        self.summary = summary

    def _end(self, reason: str | None) -> None:
        if reason is None:
            final = self.summary["return"]
            if final:
                low, high = final["interval"]
                spread = (
                    f" (95 % interval {low:.5g} to {high:.5g})" if len(self.members) > 1 else ""
                )
                self.display.say(f"Final return {final['mean']:.5g}{spread}.")
            self.display.say(f"Saved in {self.folder}")
        elif reason == "not finite":
            at = int(self.diverged.min())
            raise NotFinite(
                f"A loss was not finite at update {at} (environment step {self.env_steps(at)}); "
                f"the state before it is saved in {run_folder.checkpoints(self.folder)}. "
                "Run again with --debug to see where it began."
            )
        else:
            self.display.say(f"{reason}: saved. Go on with --resume {self.folder}")
            raise SystemExit(128 + (self.signal or 0))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first interrupt ends the run after its chunk; a second one ends it at once."""

        def handle(number, frame):
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number
            self.display.say("Stopping after this chunk ...")

        before = {number: signal.signal(number, handle) for number in INTERRUPTED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# ------------------------------------------------------------------------- earlier runs


def restore(folder: Path, shapes: Any, say=warnings.warn) -> tuple[Any, dict[str, Any]]:
    """The newest whole checkpoint of the run in `folder`, and its meta data; `say` is told of
    those that are not whole."""
    path = checkpoints.latest(run_folder.checkpoints(folder), say)
    return checkpoints.restore(path, shapes)


def _resume(folder: Path, prog: Program, keys: jax.Array, display: Display):
    progress, meta = restore(folder, prog.shapes(keys), display.say)
    display.say(f"Going on from update {meta['step']} of {folder}.")
    return prog.place(progress), meta["step"], meta["log_size"]


def _parent(
    config: Experiment, prog: Program, members: Members
) -> tuple[driver.Progress, int] | None:
    """Where a forked or warm-started run begins; None for a run from nothing."""
    if config.fork and config.warm_start:
        raise UserError("A run can be forked or warm-started, not both.")
    hyper = {**prog.algorithm.hyper, **members.own_hyper()}
    keys = members.keys(config.generator)
    if config.fork:
        folder = run_folder.check(config.fork)
        try:
            progress, meta = restore(folder, prog.shapes(keys))
        except checkpoints.CheckpointError as error:
            raise UserError(
                f"'{folder}' cannot be forked under this configuration: {error} "
                "--warm-start takes over the agent alone."
            ) from error
        run = dataclasses.replace(
            progress.run, state=hyperparameters.replace_hyper(progress.run.state, hyper)
        )
        empty = m.empty(progress.row)
        return prog.place(driver.Progress(run, empty)), meta["step"]
    if config.warm_start:
        folder = run_folder.check(config.warm_start)
        other = run_folder.read_config(folder)
        _, other_algorithm = build(other)
        others = members_of(folder)
        shapes = program(other, other_algorithm, others).shapes(others.keys(other.generator))
        progress, _ = restore(folder, shapes)
        old, new = progress.run.state, prog.start(keys)
        if not hasattr(old, "agent") or not hasattr(new.run.state, "agent"):
            raise UserError("Only algorithms that are an agent with a source can be warm-started.")
        agent = _transplant(old.agent, new.run.state.agent, folder)
        agent = hyperparameters.replace_hyper(agent, hyper)
        state = dataclasses.replace(new.run.state, agent=agent)
        run = dataclasses.replace(new.run, state=state)
        return prog.place(driver.Progress(run, new.row)), 0
    return None


def _transplant(old: Any, new: Any, folder: Path) -> Any:
    """`old` in the place of `new`: the same leaves, or one member's for each of several."""
    old_leaves, old_tree = jax.tree_util.tree_flatten_with_path(old)
    new_leaves, new_tree = jax.tree_util.tree_flatten_with_path(new)
    if old_tree != new_tree:
        raise UserError(f"The agent in '{folder}' has other parts than this configuration's.")
    taken = []
    for (path, x), (_, y) in zip(old_leaves, new_leaves, strict=True):
        if x.shape != y.shape and (x.shape != y.shape[1:] or y.ndim == 0):
            raise UserError(
                f"The agent in '{folder}' does not fit: {jax.tree_util.keystr(path)} is "
                f"{list(x.shape)} there and {list(y.shape)} here."
            )
        taken.append(jax.numpy.broadcast_to(x, y.shape))
    return new_tree.unflatten(taken)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run that was trained: its world, its policy, and all that it was made from."""

    env: Environment
    policy: Policy
    config: Experiment
    algorithm: Algorithm
    step: int  # of the algorithm
    members: Members


def load(folder: str | Path, member: int = 0) -> Trained:
    """The newest whole checkpoint in a run's folder, ready to act.

    member: which of those that were trained side by side, such as the first seed.
    Raises `UserError` if `folder` is no run folder, has no whole checkpoint or no such member.
    """
    folder = run_folder.check(folder)
    config = run_folder.read_config(folder)
    members = members_of(folder)
    if not 0 <= member < len(members):
        raise UserError(f"member is {member}; '{folder}' has members 0 to {len(members) - 1}.")
    env, algorithm = build(dataclasses.replace(config, devices=1))
    prog = program(config, algorithm, members)
    progress, meta = restore(folder, prog.shapes(members.keys(config.generator)))
    run = progress.run
    if prog.members is not None:
        run = jax.tree.map(lambda x: x[member], run)
    return Trained(env, algorithm.policy(run.state), config, algorithm, meta["step"], members)


def _final(evaluations: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    if not evaluations:
        return None
    _, values = logs.series(evaluations[-1:], name)
    values = values[np.isfinite(values)]
    if values.size == 0:
        return None
    if values.size == 1:
        return {"mean": float(values[0]), "interval": [float(values[0])] * 2, "seeds": 1}
    mean, low, high = mean_interval(values)
    return {"mean": mean, "interval": [low, high], "seeds": values.size}


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")
