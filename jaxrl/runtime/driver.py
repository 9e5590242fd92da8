"""The driven loop: the same step as `jaxrl.core.train`, in chunks, with the host in between.

A chunk is one compiled program with a dynamic number of steps. Rows of metrics, evaluations and
checkpoints fall on fixed step counts; the clock decides how long a chunk is and nothing else, so
the bits of a run do not depend on it.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl.core import metrics as m
from jaxrl.core import shared, train
from jaxrl.core.errors import UserError
from jaxrl.core.types import Algorithm, Environment, Hyper, Key, struct
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.runtime.command_line import Stopped
from jaxrl.sources.rollouts import SHARDS

CHUNK_SECONDS = 0.25  # half of how long the host may be deaf to an interrupt
EVENTS = ("log", "evaluate", "checkpoint")  # in the order in which they happen


@struct
class Progress:
    """What a checkpoint holds: the run, and the row of metrics that is being folded."""

    run: train.Run
    row: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """When things happen, in steps of the algorithm; 0 for never."""

    total: int
    log: int
    evaluate: int
    checkpoint: int

    def next_stop(self, step: int) -> int:
        """The first step after `step` at which anything happens."""
        every = [n for n in (self.log, self.evaluate, self.checkpoint) if n]
        return min([self.total] + [step - step % n + n for n in every])

    def due(self, name: str, step: int) -> bool:
        """Whether `name` (log, evaluate, checkpoint) happens at `step`; all do at the end."""
        every = getattr(self, name)
        return bool(every) and step > 0 and (step % every == 0 or step == self.total)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """An algorithm as compiled functions, for one run (`members` None) or for several that are
    vmapped: then every leaf of a run, but what they share, has a leading axis [members]."""

    algorithm: Algorithm
    members: int | None = None
    devices: int = 1
    debug: bool = False

    @property
    def ahead(self) -> bool:
        """Whether a chunk only begins when it is called, so that the host may work meanwhile."""
        return not self.debug

    def start(self, keys: Key, hyper: Hyper | None = None) -> Progress:
        """A new run from one key; or from keys [members], hypers (those that differ from the
        defaults) then [members] too."""
        begin = jax.jit(lambda *x: shared.strip(self._begin(*x)))
        run = begin(keys, {k: jnp.asarray(v) for k, v in (hyper or {}).items()})
        # Raises what went wrong, too little memory say.
        run = jax.block_until_ready(shared.fill(run))
        return self.place(Progress(run, self.empty_row(run)))

    def shapes(self, keys: Key) -> Progress:
        """Shapes and dtypes of a `Progress`, computed without running anything."""

        def begin(keys):
            run = self._begin(keys, {})
            return Progress(run, self.empty_row(run))

        return jax.eval_shape(begin, keys)

    def empty_row(self, run: train.Run) -> dict[str, Any]:
        return m.empty(jax.eval_shape(lambda run: self._advance(run)[1], run))

    def compile(self, progress: Progress) -> Callable[[Progress, int], Progress]:
        """The chunk function `(progress, steps) -> progress`; the buffers of its argument's run are
        reused, those of the row are not."""

        compiled = _checked(self._chunk, progress) if self.debug else self._compiled(progress)
        return lambda progress, steps: compiled(progress.run, progress.row, jnp.int32(steps))

    def bytes(self, progress: Progress) -> int:
        """What a chunk has in memory, as far as the compiler knows; shapes are enough."""
        stats: Any = self._compiled(progress).memory_analysis()
        parts = ("argument_size", "output_size", "temp_size")
        held = sum(getattr(stats, f"{part}_in_bytes") for part in parts)
        return held - stats.alias_size_in_bytes

    def _chunk(self, run: train.Run, row: dict[str, Any], steps: jax.Array) -> Progress:
        def body(_, progress):
            run, metrics = self._advance(progress.run)
            return Progress(run, m.merge(progress.row, metrics))

        return jax.lax.fori_loop(0, steps, body, Progress(run, row))

    def _compiled(self, progress: Progress) -> Any:
        shardings = None
        if self.devices > 1:
            shardings = jax.tree.map(lambda x: x.sharding, progress)
        program = jax.jit(self._chunk, donate_argnums=0, out_shardings=shardings)
        return program.lower(progress.run, progress.row, jnp.int32(1)).compile()

    def evaluation(self, env: Environment, episodes: int, greedy: bool) -> Callable:
        """Complete episodes with a run's policy, still to be compiled: run -> {name: mean over
        episodes} and what the algorithm measures, with a leading axis where there are members."""

        def play(run):
            policy = self.algorithm.policy(run.state)
            played = evaluate(env, policy, evaluation_key(run), episodes, greedy)
            return {
                **{k: x.mean(0) for k, x in m.by_agent("return", played.returns).items()},
                "length": played.lengths.mean(),
                "finished": played.finished.mean(),
                **{name: value.mean(0) for name, value in played.metrics.items()},
                **self.algorithm.measure(run.state),
            }

        if self.members is None:
            return jax.jit(play)
        return jax.jit(lambda run: jax.vmap(play, (shared.axes(run),))(run))

    def check_evaluation(self, evaluation: Callable, run: train.Run) -> None:
        """Raises what `evaluation` raises when it is traced."""
        jax.eval_shape(evaluation, run)

    def compile_evaluation(self, evaluation: Any, run: train.Run) -> Callable:
        return evaluation.lower(run).compile()

    def place(self, progress: Progress) -> Progress:
        """`progress` laid out over the devices as the algorithm's `partition` says.

        Raises `UserError` if there are not so many devices.
        """
        if self.devices == 1:
            return progress
        available = jax.devices()
        if self.devices > len(available):
            raise UserError(
                f"devices is {self.devices}, but there are {len(available)} "
                f"({available[0].platform})."
            )
        mesh = jax.make_mesh(
            (self.devices,), (SHARDS,), (AxisType.Auto,), devices=available[: self.devices]
        )
        run = progress.run
        state = jax.tree.map(
            lambda spec, part: jax.tree.map(lambda x: self._put(x, mesh, spec), part),
            self.algorithm.partition,
            run.state,
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )
        replicate = lambda tree: jax.tree.map(lambda x: self._put(x, mesh, PartitionSpec()), tree)
        return Progress(
            train.Run(state, replicate(run.key), replicate(run.step)), replicate(progress.row)
        )

    def _put(self, x: jax.Array, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
        if self.members is not None and spec:
            spec = PartitionSpec(None, *spec)
        return jax.device_put(x, NamedSharding(mesh, spec))

    def _advance(self, run: train.Run):
        step = lambda run: train.advance(self.algorithm, run)
        if self.members is None:
            return step(run)
        axes = shared.axes(run)
        return jax.vmap(step, (axes,), (axes, 0))(run)

    def _begin(self, keys: Key, hyper: Hyper) -> train.Run:
        begin = lambda key, hyper: train.start(self.algorithm, key, hyper)
        if self.members is None:
            return begin(keys, hyper)
        one = jax.eval_shape(begin, *jax.tree.map(lambda x: x[0], (keys, hyper)))
        return jax.vmap(begin, out_axes=shared.axes(one))(keys, hyper)


def evaluation_key(run: train.Run) -> Key:
    """Training draws from fold_in(key, step); evaluation from a branch of its own."""
    return jax.random.fold_in(jax.random.fold_in(run.key, np.uint32(2**32 - 1)), run.step)


class Halted(Stopped):
    """A chunk or an evaluation broke off. `progress` and `steps`: what a chunk had done until then,
    in whole steps of the algorithm."""

    progress: Progress | None = None
    steps: int = 0


def drive(
    chunk: Callable[[Progress, int], Progress],
    progress: Progress,
    step: int,
    plan: Plan,
    happen: Callable[[str, int, Progress], Callable[[], None]],
    stop: Callable[[int, Progress], str | None],
    tick: Callable[[int, Progress], None] = lambda step, progress: None,
    pending: Sequence[str] = (),
    ahead: bool = False,
) -> tuple[Progress, int, str | None]:
    """Run from `step` to the end of the plan, or until `stop` gives a reason.

    happen(name, step, progress): called for log, evaluate and checkpoint, in this order, when due;
        the row is emptied after log. It reads what it needs of the run, and returns what the host
        is still to do with that and with the row, in the same order.
    tick(step, progress): after every chunk.
    tick, stop: may read the row, and no more.
    pending: names of what is still to happen at the first step.
    ahead: a chunk is begun before that one is looked at which ended last, unless what happens there
        reads the run; the host works meanwhile. So a reason to stop is seen a chunk later. What a
        checkpoint holds was copied before, so whether a chunk runs ahead changes no bit.

    Returns progress, the step reached, and the reason or None at the end. Where a chunk or `happen`
    raises `Halted`, that is the reason, unless `stop` has one.
    """
    size, reason = 1, stop(step, progress)
    left: list[Callable[[], None]] = []  # what the host is still to do
    last: _Ended | None = None  # not looked at yet
    empty: dict[str, Any] | None = None
    known = 0.0  # when the chunk before it was known to be done

    def finish() -> None:
        while left:
            left.pop(0)()

    def look() -> None:
        """Wait for the chunk that ended last, and do what is due there."""
        nonlocal last, size, reason, known
        if last is None:
            return
        ended, last = last, None
        came = time.perf_counter()
        jax.block_until_ready(ended.ready)
        now = time.perf_counter()
        if now - came > 1e-4:  # else it was done before the host came, nobody knows when
            seconds = now - max(ended.began, known)
            size = max(1, min(2 * size, math.ceil(ended.count * CHUNK_SECONDS / seconds)))
        known = now
        tick(ended.step, ended.progress)
        reason = reason or stop(ended.step, ended.progress)
        for name in ended.due:
            # The row that was folded is the log's; the others see the empty one.
            left.append(happen(name, ended.step, ended.progress if name == "log" else progress))

    try:
        for name in () if reason else pending:
            left.append(happen(name, step, progress))
        while step < plan.total and not reason:
            count = min(size, plan.next_stop(step) - step)
            if not ahead:
                finish()
            began = time.perf_counter()
            try:
                begun = chunk(progress, count)
            finally:
                finish()
                look()
                finish()
            progress, step = begun, step + count
            due = tuple(name for name in EVENTS if plan.due(name, step))
            wait = not ahead or step == plan.total or due not in ((), ("log",))
            ready = progress if wait else progress.row
            last = _Ended(step, progress, due, ready, count, began)
            if "log" in due:
                empty = _empty(progress.row) if empty is None else empty
                progress = Progress(progress.run, empty)
            if wait:
                look()
        look()
    except Halted as halted:
        if halted.progress is not None:
            progress, step = halted.progress, step + halted.steps
        reason = stop(step, progress) or str(halted)
    finish()
    return progress, step, reason


class _Ended(NamedTuple):
    """A chunk that was begun and is not looked at yet."""

    step: int  # where it ends
    progress: Progress  # there; the buffers of its run may be another chunk's by now
    due: tuple[str, ...]
    ready: Any  # what to wait for
    count: int
    began: float


def _empty(row: dict[str, Any]) -> dict[str, Any]:
    """An empty row like this one, by one program, not some for each metric."""
    shapes, shardings = jax.eval_shape(lambda: row), jax.tree.map(lambda x: x.sharding, row)
    return jax.jit(lambda: m.empty(shapes), out_shardings=shardings)()


def diverged(row: dict[str, Any]) -> np.ndarray:
    """Which members' losses were not finite: the step at which that began, or `metrics.NEVER`,
    int32 [members or 1]."""
    if "diverged" not in row:
        return np.asarray([m.NEVER])
    return np.atleast_1d(np.asarray(row["diverged"].step))


class CheckFailed(Stopped):
    """A number was NaN or an index out of bounds; the message says which and where."""


def _checked(chunk, progress: Progress):
    """`chunk` with checks of every number and index, raising `CheckFailed` where one fails."""
    from jax.experimental import checkify

    def compile(checks):
        checked = jax.jit(checkify.checkify(chunk, errors=checks))
        return checked.lower(progress.run, progress.row, jnp.int32(1)).compile()

    try:
        compiled = compile(checkify.nan_checks | checkify.index_checks)
    except IndexError:  # JAX 0.10 forgets the batch dimensions of a scatter (`scatter_oob`)
        warnings.warn(
            "JAX cannot check the indices of this program; only its numbers are checked.",
            stacklevel=2,
        )
        compiled = compile(checkify.nan_checks)

    def run(*args: Any) -> Progress:
        error, progress = compiled(*args)
        failure = error.get_exception()
        if failure is not None:
            raise CheckFailed(f"{failure} {_where(failure)}".strip())
        return progress

    return run


def _where(failure: Exception) -> str:
    """The innermost lines outside JAX and its friends that `failure` came from."""
    frames = str(getattr(failure, "traceback_info", "")).splitlines()
    ours = [frame.strip() for frame in frames if "site-packages" not in frame]
    return "at " + ", called from ".join(ours[:3]) if ours else ""
