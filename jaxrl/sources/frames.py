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

from jaxrl.core.types import Array, Batch, TimeStep, Transition, Tree, struct

LARGE = 256  # bytes of a leaf of one time step from which on it is held once


@struct
class Frames:
    """What of the successors is not in the rows themselves. The lists have an entry for each large
    leaf, in the order in which the tree of a time step has them."""

    live: list[Array]  # [1, B]: after the newest row
    ends: list[Array]  # [E, B]: of steps that ended an episode, a ring for each stream
    place: Array  # int32 [L, B]: where the end of a row's step is in `ends`; -1 if it is none
    number: Array  # int32 [E, B]: of the row, counted from the first ever, that an end belongs to
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
    """Transitions whose successors lack the leaves at `paths`."""
    keep = lambda path, leaf: None if jax.tree_util.keystr(path) in paths else leaf
    rest = jax.tree_util.tree_map_with_path(keep, transitions.next_timestep)
    return dataclasses.replace(transitions, next_timestep=rest)


def empty(window: Batch, paths: list[str], rows: int, ends: int) -> Frames:
    """For a ring of so many `rows`, of what lies in a window [T, B], given as shapes."""
    leaves = _leaves(window.transitions.timestep)
    streams = window.transitions.reward.shape[1]
    room = lambda rows: [
        jnp.zeros((rows, *leaves[path].shape[1:]), leaves[path].dtype) for path in paths
    ]
    full = lambda rows, value: jnp.full((rows, streams), value, jnp.int32)
    return Frames(
        room(1), room(ends), full(rows, -1), full(ends, -1), full(1, 0), full(1, 0), full(1, -1)
    )


def written(frames: Frames, fresh: Batch, paths: list[str], head: Array) -> tuple[Frames, Array]:
    """After a window was written to the rows from `head` on; and how many of the newest rows have
    all that belongs to them."""
    done, capacity = fresh.transitions.done, len(frames.number)
    time = done.shape[0]
    place = (frames.next_end + jnp.cumsum(done, 0) - 1) % capacity
    to = jnp.where(done, place, capacity)  # beyond the ring: not written
    # Mapped over streams, so that what is split over devices stays where it is.
    put = jax.vmap(lambda ring, at, new: ring.at[at].set(new, mode="drop"), 1, 1)
    gone = jax.vmap(lambda ring, at: ring.at[at].get(mode="fill", fill_value=-1), 1, 1)
    number = frames.rows + jnp.arange(time, dtype=jnp.int32)[:, None]
    after, live = _leaves(fresh.transitions.next_timestep), _leaves(fresh.tail[0])  # type: ignore[index]
    rows = frames.rows + time
    lost = jnp.maximum(frames.lost, gone(frames.number, to).max(0, keepdims=True))
    new = Frames(
        [live[path][None] for path in paths],
        [put(ring, to, after[path]) for ring, path in zip(frames.ends, paths, strict=True)],
        jax.lax.dynamic_update_slice_in_dim(frames.place, jnp.where(done, place, -1), head, 0),
        put(frames.number, to, number),
        (frames.next_end + done.sum(0)) % capacity,
        rows,
        lost,
    )
    return new, (rows - 1 - lost).min()


def successors(
    frames: Frames, rows: Transition, taken: Transition, row: Array, head: Array, take
) -> Transition:
    """`taken`, the transitions at `row`, with the leaves that were cut.

    rows: all that the ring holds, whose next row to be written is `head`. `row` and `take` are
    those of `jaxrl.sources.ring`; the rows of a window follow one another.
    """
    held, before, after = (_leaves(x) for x in (rows.timestep, taken.timestep, taken.next_timestep))
    paths, window = [path for path in before if path not in after], row.ndim > 2
    place = take(frames.place, row)
    following = ((row[-1] if window else row) + 1) % len(frames.place)
    newest = (following == head).reshape(-1)
    for path, live, ends in zip(paths, frames.live, frames.ends, strict=True):
        beyond = take(held[path], following)
        beyond = _where(newest, take(live, jnp.zeros_like(following)), beyond)
        next_ = jnp.concatenate([before[path][1:], beyond[None]]) if window else beyond
        end = take(ends, jnp.maximum(place, 0).reshape(row.shape))
        after[path] = _where(place >= 0, end, next_)
    whole = jax.tree.structure(taken.timestep).unflatten([after[path] for path in before])
    return dataclasses.replace(taken, next_timestep=whole)


def _where(mask: Array, a: Array, b: Array) -> Array:
    return jnp.where(mask.reshape(*mask.shape, *(1,) * (a.ndim - mask.ndim)), a, b)


def _leaves(timestep: TimeStep | Tree) -> dict[str, Array]:
    found = jax.tree_util.tree_leaves_with_path(timestep)
    return {jax.tree_util.keystr(path): leaf for path, leaf in found}
