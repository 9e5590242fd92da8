"""Datasets that each run plays for itself, in `init`, and views of these and of fixed datasets:
steps, and windows within episodes. Views with goals in hindsight are in `sources.hindsight`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrl.core import random, trees
from jaxrl.core.errors import UserError
from jaxrl.core.shared import Original, Shared
from jaxrl.core.staging import isolate
from jaxrl.core.types import (
    REPLICATED,
    Array,
    Batch,
    Environment,
    Hyper,
    Key,
    Policy,
    Source,
    Transition,
    Tree,
    struct,
)
from jaxrl.sources.rollouts import SPLIT, check_shards, rollouts, window
from jaxrl.sources.segments import Windows


@struct
class Record:
    """Recorded steps [M]: one stream after the other, each from the beginning of an episode on."""

    transitions: Transition
    """The steps, without the channel `privileged`, and with no extras but those that were to be
    kept: [M]."""
    end: Array
    """Last recorded row of the step's episode: int32 [M]."""
    time: Array
    """Steps since the episode began: int32 [M]."""
    to_go: Array
    """Sum of rewards from the step to the end of its episode (or of the record): float32 [M]."""
    whole: Array
    """True where the record has the episode's end: bool [M]."""

    def at(self, row: Array) -> Transition:
        """Return the steps at the rows [...]."""
        return at_rows(self.transitions, row)


def at_rows(tree: Tree, row: Array) -> Tree:
    """Gather rows [...], all of which exist, of every leaf [M, ...]."""
    return jax.tree.map(lambda x: x.at[row].get(mode="promise_in_bounds"), tree)


def record(transitions: Transition, keep: tuple[str, ...] = ()) -> Record:
    """Record the steps [T, B] of streams that begin with the first step of an episode, with the
    extras of the names `keep`."""
    plain = lambda timestep: dataclasses.replace(timestep, privileged=None, metrics=None)
    kept = dataclasses.replace(
        transitions,
        timestep=plain(transitions.timestep),
        next_timestep=plain(transitions.next_timestep),
        task=(),
        extras={name: transitions.extras[name] for name in keep},
    )
    length, streams = transitions.reward.shape
    row = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[:, None], (length, streams))
    done = transitions.done
    last = jax.lax.cummin(jnp.where(done.at[-1].set(True), row, length), reverse=True)
    begin = jax.lax.cummax(jnp.where(transitions.first, row, 0))

    def add(total, step):
        reward, done = step
        total = reward + jnp.where(done, 0.0, total)
        return total, total

    steps = transitions.reward, done
    to_go = jax.lax.scan(add, jnp.zeros(streams), steps, reverse=True)[1]
    whole = jnp.take_along_axis(done, last, 0)
    end = last + length * jnp.arange(streams, dtype=jnp.int32)
    flat = lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:])
    return jax.tree.map(flat, Record(kept, end, row - begin, to_go, whole))


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """A way to draw batches from a record.

    prepare: record, hyperparameters -> what is kept for all batches.
    draw: record, prepared, key, n -> indices, leaves [n] (or [n, ...]).
    take: record, prepared, indices -> transitions and their mask, or None for no padding.
    whole: whether the view needs whole episodes.
    """

    name: str
    prepare: Callable[[Record, Hyper], Tree]
    draw: Callable[[Record, Tree, Key, int], Tree]
    take: Callable[[Record, Tree, Tree], tuple[Transition, Array | None]]
    whole: bool = False


def any_row(data: Record, key: Key, n: int) -> Array:
    """Draw rows [n], all equally likely."""
    return jax.random.randint(key, (n,), 0, len(data.end), jnp.int32)


def steps() -> View:
    """Draw single steps [n], all equally likely."""
    return View(
        "steps",
        prepare=lambda data, hyper: (),
        draw=lambda data, prepared, key, n: any_row(data, key, n),
        take=lambda data, prepared, row: (data.at(row), None),
    )


def windows(length: int, pad: bool = False, whole: bool = True) -> View:
    """Draw windows [length, n] of consecutive steps, each within one episode, all equally likely.
    The extras `time` and `to_go` [length, n] are those of `Record`.

    whole: leave out episodes that the record cut off, whose returns are not known. Play without
        ends is one such episode.
    pad: let a window begin at any step. Where fewer steps than `length` are left, the episode's
        last step is repeated, and the mask is False there.

    If no episode is long enough the mask is False everywhere. Raises `UserError` for a length below
    1.
    """
    if length < 1:
        raise UserError(f"The length of windows must be at least 1, got {length}.")

    def prepare(data: Record, hyper: Hyper) -> Windows:
        row = jnp.arange(len(data.end), dtype=jnp.int32)
        highest = data.end if pad else data.end - (length - 1)
        starts = row <= highest
        starts = starts & data.whole if whole else starts
        return Windows(jnp.cumsum(starts, dtype=jnp.int32), row - data.time, highest)

    def take(data: Record, prepared: Windows, start: Array) -> tuple[Transition, Array]:
        row = start + jnp.arange(length)[:, None]
        exists = jnp.broadcast_to(prepared.count[-1] > 0, row.shape)
        if pad:
            end = at_rows(data.end, start)
            row, exists = jnp.minimum(row, end), exists & (row <= end)
        found = data.at(row)
        came = {"time": at_rows(data.time, row), "to_go": at_rows(data.to_go, row)}
        return dataclasses.replace(found, extras=found.extras | came), exists

    return View(
        f"windows of {length}",
        prepare,
        draw=lambda data, prepared, key, n: prepared.draw(key, (n,)),
        take=take,
        whole=whole,
    )


@struct
class PlayedState:
    """State of a dataset behind a view.

    data: a `Record`, `Shared` or of this run. prepared: by the view. batches: batches so far,
    int32. order: numbers of the items of a batch, split over devices, int32 [n].
    """

    data: Any
    prepared: Tree
    batches: Array
    order: Array


def played_dataset(
    env: Environment,
    players: Policy,
    size: int,
    batch_size: int,
    view: View | None = None,
    *,
    streams: int = 16,
    updates: int = 1,
    seed: int | None = None,
    num_shards: int = 1,
) -> Source:
    """Draw batches from at least `size` steps that `players` play in `init`: another dataset for
    each key, whatever is learned from it.

    env: the environment that the players see, such as one with an expert's channel.
    batch_size: number of items (n) in a batch.
    view: how batches are drawn; `steps()` by default.
    streams: number of streams that are played side by side. Each begins with an episode; its last
        episode may be cut off, and views that need whole episodes leave that one out.
    updates: batches drawn in one step of `learn`; these count as steps, as in `dataset`.
    seed: the seed of one dataset for all members of a run, which is `Shared`: played now, in memory
        once, in no checkpoint. None lets every run play its own.
    num_shards: logical shards of a batch. Every device has all of the data.

    Raises `UserError` for sizes below 1, a `batch_size` that the shards do not divide, and streams
    too short to hold a whole episode where the view needs one.
    """
    sizes = {"size": size, "batch_size": batch_size, "streams": streams, "updates": updates}
    for what, value in sizes.items():
        if value < 1:
            raise UserError(f"{what} must be at least 1, got {value}.")
    check_shards(num_shards, batch_size=batch_size)
    view = view or steps()
    length = -(-size // streams)
    if view.whole and (env.max_steps is None or length < env.max_steps):
        limit = "no time limit" if env.max_steps is None else f"a limit of {env.max_steps} steps"
        raise UserError(
            f"The view '{view.name}' needs whole episodes; '{env.name}' has {limit}, and each of "
            f"{streams} streams has {length} steps: use fewer streams or a larger size."
        )
    source = rollouts(env, streams, length)

    def play(key: Key) -> Record:
        start_key, key = jax.random.split(key)
        begun = source.init(start_key, {}, players)
        return record(window(source, begun, players, key)[1].transitions)

    original = None
    if seed is not None:
        original = Original(_now(lambda: play(random.key(seed))), f"the steps played in {env.name}")
    data_of = play if original is None else lambda key: original.shared()
    return _view_source(f"played({env.name})", data_of, batch_size, view, updates)


def viewed_dataset(
    transitions: Transition,
    batch_size: int,
    view: View,
    *,
    updates: int = 1,
    name: str = "",
    num_shards: int = 1,
    keep: tuple[str, ...] = (),
) -> Source:
    """Draw batches of `batch_size` (n) items through a `view` of a dataset of N `transitions`.

    transitions: [N], one step after the other, one episode after the other. Only the last episode
        may be cut off; views that need whole episodes leave it out.
    updates, name, num_shards: as in `sources.dataset.dataset`. The arrays are `Shared`.
    keep: names of extras of the transitions that the view needs.

    Raises `UserError` for sizes below 1, arrays of different lengths, a `batch_size` that the
    shards do not divide, and a dataset without a whole episode where the view needs one.
    """
    sizes = {"batch_size": batch_size, "updates": updates, "transitions": len(transitions.reward)}
    for what, value in sizes.items():
        if value < 1:
            raise UserError(f"{what} must be at least 1, got {value}.")
    check_shards(num_shards, batch_size=batch_size)
    trees.check_rows(transitions, sizes["transitions"], f"the rewards of the dataset '{name}'")
    column = jax.tree.map(lambda x: np.asarray(x)[:, None], transitions)
    original = Original(_now(lambda column: record(column, keep), column), f"the dataset '{name}'")
    if view.whole and not original.value.whole.any():
        raise UserError(
            f"The view '{view.name}' needs whole episodes; the dataset '{name}' has none."
        )
    return _view_source(
        f"dataset({name})", lambda key: original.shared(), batch_size, view, updates
    )


def _now(make: Callable[..., Record], *given: Any) -> Record:
    """Return `make(*given)`, computed now, also where a trace asks for it first."""
    tracing = isinstance(jnp.zeros(()), Tracer)
    with jax.ensure_compile_time_eval() if tracing else contextlib.nullcontext():
        return jax.jit(make)(*given)


def _view_source(
    name: str, data_of: Callable[[Key], Any], batch_size: int, view: View, updates: int
) -> Source:
    """Return the source that draws through a view of the record `data_of(key)`, which may be
    `Shared`."""

    def init(key, hyper, policy):
        data = data_of(key)
        prepared = view.prepare(_whole(data), hyper)
        return PlayedState(data, prepared, jnp.int32(0), jnp.arange(batch_size))

    def collect(state: PlayedState, policy, key):
        batches = state.batches + updates
        return dataclasses.replace(state, batches=batches), batches.astype(jnp.float32), {}

    def sample(state: PlayedState, fresh, key) -> Batch:
        data = _whole(state.data)
        # Unless isolated, XLA draws the rows again for every leaf of the transitions.
        draw = lambda data, prepared, key: view.draw(data, prepared, key, batch_size)
        drawn = isolate(state.batches >= 0, draw, data, state.prepared, key)
        drawn = jax.tree.map(lambda x: x[state.order], drawn)
        transitions, mask = view.take(data, state.prepared, drawn)
        return Batch(transitions, fresh, mask=mask)

    return Source(
        name,
        init,
        collect,
        sample,
        env_steps=updates,
        partition=PlayedState(REPLICATED, REPLICATED, REPLICATED, SPLIT),
    )


def _whole(data: Any) -> Record:
    return data.value if isinstance(data, Shared) else data
