"""Large observations, held once by a replay though each belongs to two time steps.

What follows a step is what precedes the next one of its stream, but for the newest step, whose
successor waits in the stream, and for a step that ended an episode. The newest such ends are kept
apart; a step whose end had to go is no longer drawn, nor is anything older.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxrl.core.staging import staged
from jaxrl.core.types import Array, Batch, TimeStep, Transition, Tree, struct
from jaxrl.sources.packing import Packed, pack

LARGE = 256  # bytes of a leaf of one time step from which on it is held once


@struct
class Frames:
    """The large leaves of time steps, which are not in the rows themselves."""

    before: Packed  # [L, B]: of each row's own time step
    live: Packed  # [1, B]: after the newest row
    ends: Packed  # [1, B, E]: after steps that ended an episode, a ring for each stream
    place: Array  # int32 [L, B]: where the end of a row's step is in `ends`; -1 if it is none
    number: Array  # int32 [1, B, E]: of each end's row, counted from the first ever
    next_end: Array  # int32 [1, B]: where in `ends` the next one is written
    rows: Array  # int32 [1, B]: written so far
    lost: Array  # int32 [1, B]: number of the newest row whose end was overwritten; -1 for none


def large(window: Batch) -> list[str]:
    """The paths, within a time step, of the leaves of a window [T, B] (arrays or shapes) that can
    be held once: none where a source's windows do not go on from one another."""
    x = window.transitions
    before, after = jax.tree.structure(x.timestep), jax.tree.structure(x.next_timestep)
    if window.tail is None or before != after:
        return []
    size = lambda leaf: math.prod(leaf.shape[2:]) * leaf.dtype.itemsize
    return [path for path, leaf in _leaves(x.timestep).items() if size(leaf) >= LARGE]


def cut(transitions: Transition, paths: list[str]) -> Transition:
    """Transitions whose time steps lack the leaves at `paths`."""

    def rest(timestep):
        keep = lambda path, leaf: None if jax.tree_util.keystr(path) in paths else leaf
        return jax.tree_util.tree_map_with_path(keep, timestep)

    return dataclasses.replace(
        transitions,
        timestep=rest(transitions.timestep),
        next_timestep=rest(transitions.next_timestep),
    )


def empty(window: Batch, paths: list[str], rows: int, ends: int) -> Frames:
    """For a ring of so many `rows`, of what lies in a window [T, B], given as shapes."""
    of = jax.eval_shape(lambda timestep: _of(timestep, paths), window.transitions.timestep)
    streams = window.transitions.reward.shape[1]
    room = lambda *size: dataclasses.replace(
        of, words=jnp.zeros((*size, of.words.shape[-1]), of.words.dtype)
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


def written(frames: Frames, fresh: Batch, paths: list[str], head: Array) -> tuple[Frames, Array]:
    """After a window was written to the rows from `head` on; and how many of the newest rows have
    all that belongs to them."""
    done, capacity = fresh.transitions.done, frames.number.shape[2]
    time = done.shape[0]
    place = (frames.next_end + jnp.cumsum(done, 0) - 1) % capacity
    to = jnp.where(done, place, capacity).T  # beyond the ring: not written
    # Mapped over streams, so that what is split over devices stays where it is.
    put = jax.vmap(lambda ring, at, new: ring.at[at].set(new, mode="drop"))
    gone = jax.vmap(lambda ring, at: ring.at[at].get(mode="fill", fill_value=-1))
    gone = staged(head >= 0, gone, frames.number[0], to)
    # The larger of both is the new one. That it needs the old one first saves a copy of the ring.
    number = jnp.maximum(frames.rows.T + jnp.arange(time, dtype=jnp.int32), gone)
    after = _of(fresh.transitions.next_timestep, paths).words.swapaxes(0, 1)
    live = _of(jax.tree.map(lambda x: x[None], fresh.tail[0]), paths)  # type: ignore[index]
    rows = frames.rows + time
    lost = jnp.maximum(frames.lost, gone.max(1))
    over = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, head, 0)
    new = Frames(
        jax.tree.map(over, frames.before, _of(fresh.transitions.timestep, paths)),
        live,
        dataclasses.replace(frames.ends, words=put(frames.ends.words[0], to, after)[None]),
        over(frames.place, jnp.where(done, place, -1)),
        put(frames.number[0], to, number)[None],
        (frames.next_end + done.sum(0)) % capacity,
        rows,
        lost,
    )
    return new, (rows - 1 - lost).min()


def taken(frames: Frames, row: Array, column: Array, head: Array, take) -> tuple[Packed, Packed]:
    """The large leaves before and after the steps at `row`, of a ring whose next row to be written
    is `head`. `row`, `column` and `take` are those of `jaxrl.sources.ring`; the rows of a window
    follow one another."""
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


def joined(timestep: TimeStep, large: dict[str, Array]) -> TimeStep:
    """A time step that was `cut`, with the leaves by their paths."""
    put = lambda path, leaf: large.get(jax.tree_util.keystr(path), leaf)
    return jax.tree_util.tree_map_with_path(put, timestep, is_leaf=lambda x: x is None)


def _of(timestep: TimeStep, paths: list[str]) -> Packed:
    """The leaves at `paths` of time steps [rows, B]."""
    leaves = _leaves(timestep)
    return pack({path: leaves[path] for path in paths}, 2)


def _leaves(timestep: TimeStep | Tree) -> dict[str, Array]:
    found = jax.tree_util.tree_leaves_with_path(timestep)
    return {jax.tree_util.keystr(path): leaf for path, leaf in found}
