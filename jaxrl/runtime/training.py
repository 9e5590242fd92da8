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
from jaxrl.evaluation.evaluate import check_same_spaces
from jaxrl.evaluation.statistics import mean_interval
from jaxrl.runtime import checkpoints, configuration, driver, run_folder
from jaxrl.runtime import log as logs
from jaxrl.runtime.command_line import Stopped
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.driver import Plan, Program

DRAW_SECONDS = 30.0  # between two pictures of a run that goes on
INTERRUPTED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class NotFinite(Stopped):
    """A run's loss was no longer finite; the message says since when and where its state lies."""


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

    def name(self, member: int) -> str:
        """Such as `seed 0, learning_rate 0.001`."""
        return ", ".join(f"{name} {value:.6g}" for name, value in self.labels[member].items())

    def settings(self) -> dict[str, list[int]]:
        """What sets members apart but for their seeds (nothing is ''), and whose it is."""
        groups: dict[str, list[int]] = {}
        for i, label in enumerate(self.labels):
            parts = [f"{name} {value:.6g}" for name, value in label.items() if name != "seed"]
            groups.setdefault(", ".join(parts), []).append(i)
        return groups

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


def evaluation_environment(config: Experiment, env: Environment) -> Environment:
    """Where the policy trained in `env` is evaluated. Raises `UserError` if it cannot act there."""
    if not config.evaluate_env:
        return env
    other = envs.make(config.evaluate_env)
    check_same_spaces(env, other)
    return other


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
        folder = run_folder.check(config.resume)
        _check_unchanged(config, folder)
        members = members_of(folder)
    elif config.fork:
        members = _members_of_fork(config, members)
    members = members or seeds(config)
    # The run's folder says which generator it was, whatever device it is resumed on.
    generator = random.generator_name(random.key(0, config.generator))
    config = dataclasses.replace(config, generator=generator)
    env, algorithm = build(config)
    prog = program(config, algorithm, members)
    keys = members.keys(generator)
    session = _Session(
        config, algorithm, evaluation_environment(config, env), prog, members, display
    )
    session.check(keys)
    if config.debug:
        display.say("debug: every number and index is checked, which is slow.")

    with session.signals():
        if config.resume:
            if _is_finished(folder):
                display.say(f"The run in {folder} is finished; --fork it to train on.")
                return folder
            with run_folder.locked(folder):
                progress, meta = restore(folder, prog.shapes(keys), display.warn)
                display.say(f"Going on from update {meta['step']} of {folder}.")
                session.run(folder, prog.place(progress), meta)
            return folder

        # Everything that can be wrong is known before a folder is made.
        parent = _parent(config, session, keys)
        with run_folder.draft(config.out, config.name) as draft, run_folder.locked(draft):
            with display.announced("Starting", session.seconds):
                progress, step = parent or (prog.start(keys, members.own_hyper()), 0)
                configuration.write(config, draft / "config.yaml")
                members.write(draft / "members.json")
                meta = session.save(draft, progress, step, log_size=0)
            stem = f"{config.algorithm}-{_slug(env.name)}"
            folder = run_folder.publish(draft, config.name, stem)
            session.run(folder, progress, meta)
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
    display: Display

    def __post_init__(self):
        config = self.config
        self.plan = plan(config, self.algorithm)
        self.evaluation = self.program.evaluation(
            self.evaluation_env, config.evaluate_episodes, config.evaluate_greedy
        )
        self.seconds: dict[str, float] = {}
        self.signal: int | None = None
        self.diverged = np.full(len(self.members), m.NEVER)  # the update at which it began

    def check(self, keys: jax.Array) -> None:
        """Raises `UserError` for what would only be found while the run goes on."""
        shapes = self.program.shapes(keys)
        if self.plan.evaluate:
            jax.eval_shape(self.evaluation, shapes.run)

    def run(self, folder: Path, progress: driver.Progress, meta: dict[str, Any]) -> None:
        """From a checkpoint that was just written or read to the end of the plan."""
        self.folder, step = folder, meta["step"]
        self.saved, self.drawn = step, time.monotonic()
        self.diverged = np.asarray(meta["diverged"])
        self.log = logs.Log(folder / "metrics.jsonl", meta["log_size"])
        with self.display.announced("Compiling", self.seconds):
            chunk = self.program.compile(progress)
            if self.plan.evaluate:
                self.evaluation = self.evaluation.lower(progress.run).compile()
        began = time.perf_counter()
        with self.display.running(
            self.env_steps(step), self.env_steps(self.plan.total), len(self.members)
        ):
            progress, end, reason = driver.drive(
                chunk, progress, step, self.plan, self._happen, self._stop, self._tick
            )
        self.seconds["training"] = time.perf_counter() - began
        if self.signal and end == self.plan.total:
            reason = None  # too late to interrupt anything
        if end != self.saved:
            self._checkpoint(end, progress)
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
            played = jax.device_get(self.evaluation(progress.run))
            self._write("evaluation", step, {k: np.atleast_1d(v) for k, v in played.items()})
        elif name == "checkpoint":
            self._checkpoint(step, progress)
            if time.monotonic() - self.drawn > DRAW_SECONDS:
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
                self.display.warn(
                    f"{self.members.name(int(member))}: a loss was not finite after {at[member]} "
                    "updates; this one is frozen, the others go on."
                )
        self.diverged = np.minimum(self.diverged, at)
        return "not finite" if np.all(self.diverged != m.NEVER) else None

    def _tick(self, step: int, progress: driver.Progress) -> None:
        if not self.plan.due("log", step):
            score = progress.row.get("episode_return")
            if score is not None:
                self.display.score(np.atleast_1d(np.asarray(score.value())))
        self.display.tick(self.env_steps(step))

    def _checkpoint(self, step: int, progress: driver.Progress) -> None:
        self.save(self.folder, progress, step, self.log.size())
        self.saved = step

    def save(
        self, folder: Path, progress: driver.Progress, step: int, log_size: int
    ) -> dict[str, Any]:
        """Write a checkpoint; returns what it says of itself."""
        meta = {
            "step": step,
            "log_size": log_size,
            "members": len(self.members),
            "diverged": self.diverged.tolist(),
            "jaxrl": jaxrl.__version__,
            "jax": jax.__version__,
        }
        path = run_folder.checkpoints(folder)
        checkpoints.save(path, step, progress, meta, keep=self.config.keep)
        return meta

    def _draw(self) -> None:
        self.drawn = time.monotonic()
        rows = logs.read(self.folder / "metrics.jsonl", "train")
        steps, values = logs.series(rows, "episode_return")
        if values.size == 0:
            return
        from jaxrl.evaluation.plots import learning_curves

        groups = self.members.settings()
        learning_curves(
            {name or self.config.algorithm: (steps, values[i]) for name, i in groups.items()},
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
            "return": None if self.members.hyper else _final(evaluations, "return"),
            "returns": _last(evaluations, "return"),
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
                low, high = final["interval"] or (np.nan, np.nan)
                spread = f" (95 % interval {low:.5g} to {high:.5g})" if final["interval"] else ""
                self.display.say(f"Final return {final['mean']:.5g}{spread}.")
            self.display.say(f"Saved in {self.folder}")
        elif reason == "not finite":
            at = int(self.diverged.min())
            raise NotFinite(
                f"A loss was not finite after {at} updates ({self.env_steps(at)} environment "
                f"steps); the state before it is saved in {run_folder.checkpoints(self.folder)}. "
                "Run again with --debug to see where it began."
            )
        else:
            self.display.warn(f"{reason}: saved. Go on with --resume {self.folder}")
            raise SystemExit(128 + (self.signal or 0))

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """The first interrupt ends the run after its chunk; a second one ends it at once."""

        def handle(number, frame):
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number
            self.display.say("Stopping and saving; once more to stop at once ...")

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


def _is_finished(folder: Path) -> bool:
    try:
        return json.loads((folder / "summary.json").read_text())["finished"]
    except (OSError, ValueError, KeyError):
        return False


def _check_unchanged(config: Experiment, folder: Path) -> None:
    """Raises `UserError` if the run in `folder` is to go on under other settings than its own."""
    before, now = (
        configuration.to_dict(run_folder.read_config(folder)),
        configuration.to_dict(config),
    )
    for name, old, new in configuration.differences(before, now):
        if name != "devices":
            raise UserError(
                f"{name} is {new!r} here and {old!r} in '{folder}'; --resume goes on unchanged, "
                "--fork starts a new run from there under other settings."
            )


def _members_of_fork(config: Experiment, members: Members | None) -> Members:
    """The members of the run that is forked; what sets them apart stays theirs.

    Raises `UserError` if the configuration would have others.
    """
    folder = run_folder.check(config.fork)
    parents, before = members_of(folder), run_folder.read_config(folder)
    if members is not None:
        raise UserError(
            "A sweep cannot be forked into another; --warm-start takes one run's agent."
        )
    for name in ("seed", "seeds"):
        if getattr(config, name) != getattr(before, name):
            raise UserError(f"A fork keeps the seeds of '{folder}'; {name} cannot be changed.")
    for name in parents.hyper:
        if getattr(config.agent, name, None) != getattr(before.agent, name):
            raise UserError(f"agent.{name} is varied in '{folder}'; a fork cannot change it.")
    return parents


def _parent(
    config: Experiment, session: _Session, keys: jax.Array
) -> tuple[driver.Progress, int] | None:
    """Where a forked or warm-started run begins; None for a run from nothing."""
    if config.fork and config.warm_start:
        raise UserError("A run can be forked or warm-started, not both.")
    if config.fork:
        return _fork(run_folder.check(config.fork), session, keys)
    if config.warm_start:
        return _warm_start(run_folder.check(config.warm_start), session, keys), 0
    return None


def _fork(folder: Path, session: _Session, keys: jax.Array) -> tuple[driver.Progress, int]:
    """The state of the run in `folder` with the new hyper-parameters, and its step."""
    prog, algorithm = session.program, session.algorithm
    _, before = build(run_folder.read_config(folder))
    refused = f"'{folder}' cannot be forked under this configuration:"
    if before.frames != algorithm.frames:
        raise UserError(
            f"{refused} an update takes {before.frames} environment steps there and "
            f"{algorithm.frames} here. --warm-start takes over the agent alone."
        )
    try:
        progress, meta = restore(folder, prog.shapes(keys), session.display.warn)
    except checkpoints.CheckpointError as error:
        raise UserError(f"{refused} {error} --warm-start takes over the agent alone.") from error
    if meta["step"] >= session.plan.total:
        raise UserError(
            f"'{folder}' has done {session.env_steps(meta['step'])} environment steps already; "
            "say --steps with more than that, these included."
        )
    hyper = {**algorithm.hyper, **session.members.own_hyper()}
    state = hyperparameters.replace_hyper(progress.run.state, hyper)
    if hasattr(state, "diverged"):  # the new hyper-parameters deserve a try
        state = dataclasses.replace(state, diverged=np.full_like(state.diverged, m.NEVER))
    run = dataclasses.replace(progress.run, state=state)
    return prog.place(driver.Progress(run, m.empty(progress.row))), meta["step"]


def _warm_start(folder: Path, session: _Session, keys: jax.Array) -> driver.Progress:
    """A new run whose agent state is that of the run in `folder`, but for the hyper-parameters."""
    prog = session.program
    other = run_folder.read_config(folder)
    _, other_algorithm = build(dataclasses.replace(other, devices=1))
    others = members_of(folder)
    shapes = program(other, other_algorithm, others).shapes(others.keys(other.generator))
    if len(others) not in (1, len(session.members)):
        raise UserError(
            f"'{folder}' has {len(others)} members; a run of {len(session.members)} can be "
            "warm-started from as many or from one."
        )
    progress, _ = restore(folder, shapes, session.display.warn)
    new = prog.start(keys, session.members.own_hyper())
    old_state, state = progress.run.state, new.run.state
    if not hasattr(old_state, "agent") or not hasattr(state, "agent"):
        raise UserError("Only algorithms that are an agent with a source can be warm-started.")
    agent = _transplant(old_state.agent, state.agent, folder)
    agent = hyperparameters.replace_hyper(agent, hyperparameters.read_hyper(state.agent))
    run = dataclasses.replace(new.run, state=dataclasses.replace(state, agent=agent))
    return prog.place(driver.Progress(run, new.row))


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
    trained, policies = load_all(folder)
    if not 0 <= member < len(policies):
        raise UserError(f"member is {member}; '{folder}' has members 0 to {len(policies) - 1}.")
    return dataclasses.replace(trained, policy=policies[member])


def load_all(folder: str | Path) -> tuple[Trained, list[Policy]]:
    """As `load`, and the policies of all members."""
    folder = run_folder.check(folder)
    config = run_folder.read_config(folder)
    members = members_of(folder)
    env, algorithm = build(dataclasses.replace(config, devices=1))
    prog = program(config, algorithm, members)
    progress, meta = restore(folder, prog.shapes(members.keys(config.generator)))
    states = [progress.run.state]
    if prog.members is not None:
        states = [jax.tree.map(lambda x: x[i], states[0]) for i in range(prog.members)]  # noqa: B023
    policies = [algorithm.policy(state) for state in states]
    return Trained(env, policies[0], config, algorithm, meta["step"], members), policies


def _last(evaluations: list[dict[str, Any]], name: str) -> list[float] | None:
    """Each member's value of a metric in the last evaluation; None without any."""
    values = logs.series(evaluations[-1:], name)[1]
    return values[:, -1].tolist() if values.size else None


def _final(evaluations: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Mean over seeds and its 95 % interval (None for a single one) in the last evaluation."""
    values = np.asarray(_last(evaluations, name) or [], float)
    values = values[np.isfinite(values)]
    if values.size == 0:
        return None
    mean, low, high = mean_interval(values)
    interval = [low, high] if values.size > 1 else None
    return {"mean": mean, "interval": interval, "seeds": values.size}


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")
