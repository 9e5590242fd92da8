"""Large observations, which a replay buffer stores once though each belongs to two time steps.

The observation after a step is the observation before the next step of its stream. Exceptions are
the newest step, whose successor waits in the stream, and steps that end an episode. The newest such
ends are stored apart; once an end is overwritten, its step and all older ones are no longer drawn.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl.core.staging import isolate
from jaxrl.core.types import Array, Batch, TimeStep, Transition, Tree, struct
from jaxrl.sources.packing import Packed, pack

LARGE = 256  # bytes from which on a leaf of one time step is stored once


@struct
class Frames:
    """Large leaves of time steps, which the rows of a ring lack. Rows are numbered from the first
    one ever written."""

    before: Packed
    """Leaves before the step of each row: [L, B]."""
    live: Packed
    """Leaves after the newest row: [1, B]."""
    ends: Packed
    """Leaves after steps that ended an episode, a ring for each stream: [1, B, E]."""
    place: Array
    """Place in `ends` of the leaves after each row; -1 if it ended no episode: int32 [L, B]."""
    number: Array
    """Number of the row of each end: int32 [1, B, E]."""
    next_end: Array
    """Place in `ends` that is written next: int32 [1, B]."""
    rows: Array
    """Rows that were written so far: int32 [1, B]."""
    lost: Array
    """Number of the newest row whose end was overwritten; -1 for none: int32 [1, B]."""


def large_leaves(window: Batch) -> list[str]:
    """Return the paths, within a time step, of the leaves that can be stored once, for a window
    [T, B] of arrays or shapes. There are none if the windows of a source do not follow each
    other."""
    x = window.transitions
    before, after = jax.tree.structure(x.timestep), jax.tree.structure(x.next_timestep)
    if window.tail is None or before != after:
        return []
    size = lambda leaf: math.prod(leaf.shape[2:]) * leaf.dtype.itemsize
    return [path for path, leaf in _leaves(x.timestep).items() if size(leaf) >= LARGE]


def cut(transitions: Transition, paths: list[str]) -> Transition:
    """Remove the leaves at `paths` from the time steps of transitions."""

    def rest(timestep):
        keep = lambda path, leaf: None if jax.tree_util.keystr(path) in paths else leaf
        return jax.tree_util.tree_map_with_path(keep, timestep)

    return dataclasses.replace(
        transitions,
        timestep=rest(transitions.timestep),
        next_timestep=rest(transitions.next_timestep),
    )


def empty(window: Batch, paths: list[str], rows: int, ends: int) -> Frames:
    """Make the empty frames of a ring.

    window: shapes of a window [T, B].
    paths: leaves that are stored once.
    rows: rows of the ring.
    ends: ends of episodes that there is room for in each stream.
    """
    packed = jax.eval_shape(lambda x: _pack_leaves(x, paths), window.transitions.timestep)
    streams = window.transitions.reward.shape[1]
    room = lambda *size: dataclasses.replace(
        packed, words=jnp.zeros((*size, packed.words.shape[-1]), packed.words.dtype)
    )
    full = lambda value, *size: jnp.full(size, value, jnp.int32)
    return Frames(
        room(rows, streams),
        room(1, streams),
        room(1, streams, ends),
        full(-1, rows, streams),
        full(-1, 1, streams, ends),
        full(0, 1, streams),
        full(0, 1, streams),
        full(-1, 1, streams),
    )


def write(frames: Frames, fresh: Batch, paths: list[str], *, head: Array) -> tuple[Frames, Array]:
    """Write the window `fresh` to the rows from `head` on. Returns the frames, and the number of
    newest rows whose leaves are all still there."""
    done, capacity = fresh.transitions.done, frames.number.shape[2]
    time = done.shape[0]
    place = (frames.next_end + jnp.cumsum(done, 0) - 1) % capacity
    to = jnp.where(done, place, capacity).T  # a place beyond the ring is not written
    # Mapped over streams, so that each device keeps its own.
    put = jax.vmap(lambda ring, at, new: ring.at[at].set(new, mode="drop"))
    gone = jax.vmap(lambda ring, at: ring.at[at].get(mode="fill", fill_value=-1))
    gone = isolate(head >= 0, gone, frames.number[0], to)
    # The new number is the larger one. Reading the old one first saves XLA a copy of the ring.
    number = jnp.maximum(frames.rows.T + jnp.arange(time, dtype=jnp.int32), gone)
    after = _pack_leaves(fresh.transitions.next_timestep, paths).words.swapaxes(0, 1)
    live = _pack_leaves(jax.tree.map(lambda x: x[None], fresh.tail[0]), paths)  # type: ignore[index]
    rows = frames.rows + time
    lost = jnp.maximum(frames.lost, gone.max(1))
    over = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, head, 0)
    new = Frames(
        jax.tree.map(over, frames.before, _pack_leaves(fresh.transitions.timestep, paths)),
        live,
        dataclasses.replace(frames.ends, words=put(frames.ends.words[0], to, after)[None]),
        over(frames.place, jnp.where(done, place, -1)),
        put(frames.number[0], to, number)[None],
        (frames.next_end + done.sum(0)) % capacity,
        rows,
        lost,
    )
    return new, (rows - 1 - lost).min()


class Take(Protocol):
    def __call__(self, ring: Tree, row: Array, column: Array, columns_axis: int = 1, /) -> Tree:
        """Gather items from a ring, see `jaxrl.sources.ring.take`.

        ring: arrays [L, B], or [B, L] with `columns_axis` 0.
        row: rows of the items.
        column: columns of the items.
        columns_axis: axis of the columns.
        """
        ...


def read(
    frames: Frames, row: Array, column: Array, *, head: Array, take: Take
) -> tuple[Packed, Packed]:
    """Read the large leaves before and after steps.

    row, column: places of the steps, as `take` has them; the rows of a window follow one another.
    head: the row of the ring that is written next.
    take: gathers from a ring.
    """
    window = row.ndim > 2
    following = (row[-1] if window else row) + 1
    following = jnp.where(following == len(frames.place), 0, following)
    newest = (following == head).reshape(-1, 1)
    before, place = take((frames.before, frames.place), row, column)
    beyond = take(frames.before.words, following, column)
    beyond = jnp.where(newest, take(frames.live.words, jnp.zeros_like(following), column), beyond)
    after = jnp.concatenate([before.words[1:], beyond[None]]) if window else beyond
    end = take(frames.ends.words[0], jnp.maximum(place, 0).reshape(row.shape), column, 0)
    after = jnp.where(place[..., None] >= 0, end, after)
    return before, dataclasses.replace(before, words=after)


def restore(timestep: TimeStep, leaves: dict[str, Array]) -> TimeStep:
    """Put leaves, by their paths, back into a time step that `cut` removed them from."""
    put = lambda path, leaf: leaves.get(jax.tree_util.keystr(path), leaf)
    return jax.tree_util.tree_map_with_path(put, timestep, is_leaf=lambda x: x is None)


def _pack_leaves(timestep: TimeStep, paths: list[str]) -> Packed:
    """Pack the leaves at `paths` of time steps [rows, B]."""
    leaves = _leaves(timestep)
    return pack({path: leaves[path] for path in paths}, 2)


def _leaves(timestep: TimeStep | Tree) -> dict[str, Array]:
    found = jax.tree_util.tree_leaves_with_path(timestep)
    return {jax.tree_util.keystr(path): leaf for path, leaf in found}
