"""The driven loop: the step of `jaxrl.core.train` in chunks, with work on the host between them.

A chunk is one compiled program with a dynamic number of steps. Rows of metrics, evaluations and
checkpoints fall on fixed step counts; the clock only decides how long a chunk is, so the bits of a
run do not depend on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl.core import metrics as m
from jaxrl.core import shared, train
from jaxrl.core.devices import SEEDS
from jaxrl.core.learn import evaluation_policy
from jaxrl.core.types import Algorithm, Environment, Hyper, Key, struct
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.runtime import placement, processes
from jaxrl.runtime.errors import Stopped

CHUNK_SECONDS = 0.25  # half of how long the host may not respond to an interrupt
EVENTS = ("log", "evaluate", "record", "checkpoint")  # in the order in which they happen


@struct
class Progress:
    """The content of a checkpoint: the run, and the row of metrics that is being accumulated."""

    run: train.Run
    row: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The schedule of a run, in steps of the algorithm; 0 for never."""

    total: int
    log: int
    evaluate: int
    checkpoint: int
    record: int = 0

    def next_stop(self, step: int) -> int:
        """Return the first step after `step` at which anything happens."""
        every = [n for n in (self.log, self.evaluate, self.record, self.checkpoint) if n]
        return min([self.total] + [step - step % n + n for n in every])

    def is_due(self, name: str, step: int) -> bool:
        """Return whether `name` is due at `step`; all are at the end."""
        every = getattr(self, name)
        return bool(every) and step > 0 and (step % every == 0 or step == self.total)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """An algorithm as compiled functions, for one run (`members` None) or several vmapped runs.

    With several, every leaf of a run has a leading axis [members], except what the members share.

    layout: number of devices along each axis of the mesh over which the run is spread
        (`placement.layout`); empty for one device.
    """

    algorithm: Algorithm
    members: int | None = None
    layout: Mapping[str, int] = dataclasses.field(default_factory=dict)
    debug: bool = False

    @functools.cached_property
    def mesh(self) -> Mesh | None:
        """The mesh of devices; None for one device."""
        return placement.make_mesh(self.layout) if self.layout else None

    @property
    def ahead(self) -> bool:
        """True if calling a chunk only starts it, so that the host may work meanwhile.

        Several processes first agree on how the run continues after a chunk.
        """
        return not self.debug and processes.count() == 1

    def start(self, keys: Key, hyper: Hyper | None = None) -> Progress:
        """Return a new run from one key, or runs from keys [members].

        `hyper` holds the hyperparameters that differ from the defaults, also [members] for several.
        """
        hyper = {k: jnp.asarray(v) for k, v in (hyper or {}).items()}
        if shared.has_shared(jax.eval_shape(self._begin, keys, hyper)):
            # Each device holds what is shared, so one can begin; JAX (0.10) has no callbacks to the
            # host in a program that is partly split by hand.
            run = jax.jit(lambda *x: shared.strip(self._begin(*x)))(keys, hyper)
        else:
            run = self._begin_on_mesh(keys, hyper)
        run = jax.block_until_ready(shared.fill(run))  # raises errors such as out of memory
        return self.place(Progress(run, self.empty_row(run)))

    def _begin_on_mesh(self, keys: Key, hyper: Hyper) -> train.Run:
        """Begin where each part belongs: one device might not hold it all."""
        if processes.count() > 1 and self.mesh is not None:
            everywhere = NamedSharding(self.mesh, PartitionSpec())
            keys, hyper = jax.tree.map(lambda x: processes.put(x, everywhere), (keys, hyper))
        with self._on_mesh():
            shapes = jax.eval_shape(self._begin, keys, hyper)
            begin = self._by_member(self._begin, (keys, hyper), shapes)
            return jax.jit(begin, out_shardings=self._shardings(shapes))(keys, hyper)

    def shapes(self, keys: Key) -> Progress:
        """Return the shapes and dtypes of a `Progress` without running anything."""

        def begin(keys):
            run = self._begin(keys, {})
            return Progress(run, self.empty_row(run))

        return jax.eval_shape(begin, keys)

    def empty_row(self, run: train.Run) -> dict[str, Any]:
        """Return a row of metrics with nothing accumulated."""
        return m.empty(jax.eval_shape(lambda run: self._advance(run)[1], run))

    def compile(self, progress: Progress) -> Callable[[Progress, int], Progress]:
        """Return the chunk function `(progress, steps) -> progress`.

        It reuses the buffers of its argument's run, but not those of the row.
        """

        compiled = (
            _compile_checked(self._chunk, progress) if self.debug else self._compile_chunk(progress)
        )
        return lambda progress, steps: compiled(progress.run, progress.row, np.int32(steps))

    def bytes(self, progress: Progress) -> int:
        """Return the memory that a chunk needs, as far as the compiler knows. Shapes are enough."""
        stats: Any = self._compile_chunk(progress).memory_analysis()
        parts = ("argument_size", "output_size", "temp_size")
        held = sum(getattr(stats, f"{part}_in_bytes") for part in parts)
        return held - stats.alias_size_in_bytes

    def _chunk(self, run: train.Run, row: dict[str, Any], steps: jax.Array) -> Progress:
        def body(_, progress):
            run, metrics = self._advance(progress.run)
            return Progress(run, m.merge(progress.row, metrics))

        return jax.lax.fori_loop(0, steps, body, Progress(run, row))

    def _compile_chunk(self, progress: Progress) -> Any:
        shardings = None
        if self.mesh is not None:
            shardings = jax.tree.map(lambda x: x.sharding, progress)
        args = (progress.run, progress.row, np.int32(1))
        with self._on_mesh():
            chunk = self._by_member(self._chunk, args, progress)
            program = jax.jit(chunk, donate_argnums=0, out_shardings=shardings)
            return program.lower(*args).compile()

    def evaluation(self, env: Environment, episodes: int, greedy: bool) -> Callable:
        """Return a function, not compiled yet, that plays complete episodes with a run's policy.

        It maps a run to {name: mean over episodes}, with what the algorithm itself measures, and
        with a leading axis if there are members.
        """

        def play(run):
            policy = evaluation_policy(self.algorithm, run.state)
            key = evaluation_key(run)
            played = evaluate(env, policy, key, episodes, greedy)
            return {
                **{k: x.mean(0) for k, x in m.by_agent("return", played.returns).items()},
                "length": played.lengths.mean(),
                "finished": played.finished.mean(),
                **{name: value.mean(0) for name, value in played.metrics.items()},
                **self.algorithm.measure(run.state, jax.random.fold_in(key, 1)),
            }

        if self.members is None:
            return play
        return lambda run: _map_members(play, (shared.axes(run),), 0, run.step.size)(run)

    def check_evaluation(self, evaluation: Callable, run: train.Run) -> None:
        """Raise the errors that tracing `evaluation` raises."""
        jax.eval_shape(evaluation, run)

    def compile_evaluation(self, evaluation: Callable, run: train.Run) -> Callable:
        """Compile a function that `evaluation` returned."""
        with self._on_mesh():
            played = jax.eval_shape(evaluation, run)
            return jax.jit(self._by_member(evaluation, (run,), played)).lower(run).compile()

    def place(self, progress: Progress) -> Progress:
        """Lay out `progress` over the devices of the mesh."""
        if self.mesh is None:
            return progress
        of_row = NamedSharding(self.mesh, PartitionSpec(SEEDS) if self.members else PartitionSpec())
        rows = jax.tree.map(lambda x: of_row, progress.row)
        shardings = Progress(self._shardings(progress.run), rows)
        return jax.tree.map(processes.put, progress, shardings)

    def _shardings(self, run: train.Run) -> Any:
        """Return the sharding of each leaf of a run, of which shapes are enough; None without a
        mesh."""
        if self.mesh is None:
            return None
        many = self.members is not None
        state = placement.state_shardings(self.algorithm, self.mesh, run.state, many)
        each: Any = NamedSharding(self.mesh, PartitionSpec(SEEDS) if many else PartitionSpec())
        return train.Run(state, each, each)

    def _on_mesh(self) -> Any:
        """Return the context in which what runs on the mesh is traced (`core.devices.spread`)."""
        return jax.set_mesh(self.mesh) if self.mesh is not None else contextlib.nullcontext()

    def _by_member(self, function: Callable, args: Sequence[Any], result: Any) -> Callable:
        """Return `function` as a program of its own on each part of the axis `seeds`, with its part
        of the members: loops that end with their members' episodes do not wait for the others.

        args, result: what it takes and returns, of which structures and shapes are enough. All
            that has axes has a leading axis for the members, except what they share.
        """
        if self.mesh is None or self.mesh.shape[SEEDS] == 1:
            return function

        def spec(x: Any) -> PartitionSpec:
            alone = shared.is_shared(x) or not jnp.ndim(x)
            return PartitionSpec() if alone else PartitionSpec(SEEDS)

        specs = lambda tree: jax.tree.map(spec, tree, is_leaf=shared.is_shared)
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=tuple(specs(x) for x in args),
            out_specs=specs(result),
            axis_names={SEEDS},
            check_vma=False,
        )

    def _advance(self, run: train.Run):
        step = lambda run: train.advance(self.algorithm, run)
        if self.members is None:
            return step(run)
        axes = shared.axes(run)
        return _map_members(step, (axes,), (axes, 0), run.step.size)(run)

    def _begin(self, keys: Key, hyper: Hyper) -> train.Run:
        begin = lambda key, hyper: train.start(self.algorithm, key, hyper)
        if self.members is None:
            return begin(keys, hyper)
        one = jax.eval_shape(begin, *jax.tree.map(lambda x: x[0], (keys, hyper)))
        return _map_members(begin, (0, 0), shared.axes(one), len(keys))(keys, hyper)


def _map_members(function: Callable, in_axes: Any, out_axes: Any, members: int) -> Callable:
    """Return `function` vmapped over members, or, if a device has one, called without `vmap`, under
    which branches compute both sides."""
    if members != 1:
        return jax.vmap(function, in_axes, out_axes)
    each = lambda change: lambda axis, part: part if axis is None else jax.tree.map(change, part)
    no_axis = lambda axis: axis is None
    first, again = each(lambda x: x[0]), each(lambda x: x[None])

    def alone(*args: Any) -> Any:
        result = function(*jax.tree.map(first, in_axes, args, is_leaf=no_axis))
        return jax.tree.map(again, out_axes, result, is_leaf=no_axis)

    return alone


def evaluation_key(run: train.Run) -> Key:
    """Return an evaluation's key; training uses fold_in(key, step), evaluations another branch."""
    return jax.random.fold_in(jax.random.fold_in(run.key, np.uint32(2**32 - 1)), run.step)


class Halted(Stopped):
    """A chunk or an evaluation that ended early.

    `progress` and `steps`: what a chunk had done by then, in whole steps of the algorithm.
    """

    progress: Progress | None = None
    steps: int = 0


def drive(
    chunk: Callable[[Progress, int], Progress],
    progress: Progress,
    step: int,
    plan: Plan,
    on_event: Callable[[str, int, Progress], Callable[[], None]],
    stop: Callable[[int, Progress], str | None],
    on_chunk: Callable[[int, Progress], None] = lambda step, progress: None,
    pending: Sequence[str] = (),
    ahead: bool = False,
) -> tuple[Progress, int, str | None]:
    """Run from `step` to the end of the plan, or until `stop` returns a reason.

    Args:
        on_event: (name, step, progress) -> work; called when an event of `EVENTS` is due,
            in this order; the row is emptied after log. It reads what it needs of the run, and
            returns the host's remaining work with that and with the row, done in the same order.
        stop: (step, progress) -> a reason to stop, or None. It may read the row only.
        on_chunk: (step, progress), called after every chunk. It may read the row only.
        pending: names of the events that are still due at the first step.
        ahead: start a chunk before handling the end of the last one, unless an event there reads
            the run; the host works meanwhile. A reason to stop is then seen one chunk later. A
            checkpoint holds a copy made before, so `ahead` changes no bit.

    Returns:
        The progress, the step reached, and the reason, or None at the end of the plan. If a chunk
        or `on_event` raises `Halted`, that is the reason, unless `stop` has one.
    """
    size, reason = 1, stop(step, progress)
    work: list[Callable[[], None]] = []  # the host's remaining work
    last: _Chunk | None = None  # not handled yet
    empty: dict[str, Any] | None = None
    known = 0.0  # when the chunk before was known to be done

    def do_work() -> None:
        while work:
            work.pop(0)()

    def handle_last() -> None:
        """Wait for the last chunk, and handle the events at its end."""
        nonlocal last, size, reason, known
        if last is None:
            return
        ended, last = last, None
        called = time.perf_counter()
        jax.block_until_ready(ended.ready)
        now = time.perf_counter()
        if now - called > 1e-4:  # else it was done earlier, and its duration is unknown
            seconds = now - max(ended.began, known)
            size = max(1, min(2 * size, math.ceil(ended.count * CHUNK_SECONDS / seconds)))
        size = processes.of_first(size)
        known = now
        on_chunk(ended.step, ended.progress)
        reason = reason or stop(ended.step, ended.progress)
        for name in ended.due:
            # The log reads the accumulated row; the others see the emptied one.
            work.append(on_event(name, ended.step, ended.progress if name == "log" else progress))

    try:
        for name in () if reason else pending:
            work.append(on_event(name, step, progress))
        while step < plan.total and not reason:
            count = min(size, plan.next_stop(step) - step)
            if not ahead:
                do_work()
            began = time.perf_counter()
            try:
                started = chunk(progress, count)
            finally:
                do_work()
                handle_last()
                do_work()
            progress, step = started, step + count
            due = tuple(name for name in EVENTS if plan.is_due(name, step))
            wait = not ahead or step == plan.total or due not in ((), ("log",))
            ready = progress if wait else progress.row
            last = _Chunk(step, progress, due, ready, count, began)
            if "log" in due:
                empty = _empty_row(progress.row) if empty is None else empty
                progress = Progress(progress.run, empty)
            if wait:
                handle_last()
        handle_last()
    except Halted as halted:
        if halted.progress is not None:
            progress, step = halted.progress, step + halted.steps
        reason = stop(step, progress) or str(halted)
    do_work()
    return progress, step, reason


class _Chunk(NamedTuple):
    """A chunk that was started and not handled yet."""

    step: int  # at its end
    progress: Progress  # at its end; the next chunk may have reused the buffers of its run
    due: tuple[str, ...]
    ready: Any  # arrays to wait for
    count: int
    began: float


def _empty_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return an empty row like this one, by one program rather than several for each metric."""
    shapes, shardings = jax.eval_shape(lambda: row), jax.tree.map(lambda x: x.sharding, row)
    return jax.jit(lambda: m.empty(shapes), out_shardings=shardings)()


def diverged_at(row: dict[str, Any]) -> np.ndarray:
    """Return the step from which each member's losses were not finite, or `metrics.NEVER`.

    int32 [members or 1].
    """
    if "diverged" not in row:
        return np.asarray([m.NEVER])
    return np.atleast_1d(processes.fetch(row["diverged"].step))


class CheckFailed(Stopped):
    """A number that was NaN or an index out of bounds; the message says which and where."""


def _compile_checked(chunk, progress: Progress):
    """Compile `chunk` with checks of every number and index; it raises `CheckFailed`."""
    from jax.experimental import checkify

    def compile(checks):
        checked = jax.jit(checkify.checkify(chunk, errors=checks))
        return checked.lower(progress.run, progress.row, jnp.int32(1)).compile()

    try:
        compiled = compile(checkify.nan_checks | checkify.index_checks)
    except IndexError:  # JAX 0.10 ignores the batch dimensions of a scatter (`scatter_oob`)
        warnings.warn(
            "JAX cannot check the indices of this program; only its numbers are checked.",
            stacklevel=2,
        )
        compiled = compile(checkify.nan_checks)

    def run(*args: Any) -> Progress:
        error, progress = compiled(*args)
        failure = error.get_exception()
        if failure is not None:
            raise CheckFailed(f"{failure} {_location(failure)}".strip())
        return progress

    return run


def _location(failure: Exception) -> str:
    """Return the innermost lines outside JAX and its libraries that `failure` came from."""
    frames = str(getattr(failure, "traceback_info", "")).splitlines()
    ours = [frame.strip() for frame in frames if "site-packages" not in frame]
    return "at " + ", called from ".join(ours[:3]) if ours else ""
