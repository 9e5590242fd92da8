"""A ring of transitions over time, and how a batch is drawn from it: `replay` writes one over and
over, `dataset` holds one that is full and never written."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.staging import staged
from jaxrl.core.types import Array, Batch, Key, Transition, Tree, struct
from jaxrl.sources import frames as large
from jaxrl.sources.frames import Frames
from jaxrl.sources.packing import Packed, flat, shaped
from jaxrl.sources.samplers import Sampler


@struct
class Ring:
    source: Tree  # of what fills it
    # [L, B]: a ring over time; a stream keeps its column. `Packed`, but in a dataset, `Shared`
    transitions: Any
    mask: Array | None  # [L, B], as the source's batches have it
    memory: Tree  # [L / T, B]: before each window that was collected; None unless it is kept
    head: Array  # int32: the row that is written next
    filled: Array  # int32: rows written, at most L
    sampler: Tree  # leading axis [shards]
    hyper: dict[str, Any]
    frames: Frames | None = None  # of large observations, which `transitions` lack


def draw(
    ring: Ring,
    sampler: Sampler,
    key: Key,
    env_steps: Array,
    batch_size: int,
    length: int | None = None,
    num_shards: int = 1,
    order: Array | None = None,
) -> Batch:
    """`batch_size` items of what is held, [n], or windows [length, n] of consecutive rows of one
    column, never across the place where the newest row meets the oldest.

    order: int32 [n], the items' numbers, of which each device holds some: for a ring that is not
        split itself. It has one shard then."""
    rows, columns = jax.tree.leaves(ring.transitions)[0].shape[:2]
    # A slot is where an item can start: at every row, or only where memory was kept.
    kept = ring.memory is not None
    stride = rows // jax.tree.leaves(ring.memory)[0].shape[0] if kept else 1
    oldest = (ring.head - ring.filled) % rows // stride
    starts = (ring.filled - (length or 1)) // stride + 1
    draw = lambda state, key: sampler.draw(state, key, batch_size // num_shards, oldest, starts)
    slot, column, probability = jax.vmap(draw)(ring.sampler, jax.random.split(key, num_shards))
    if order is not None:
        slot, column = slot[:, order], column[:, order]
        probability = probability if probability is None else probability[:, order]
    row = slot * stride
    if length is not None:
        row = row + jnp.arange(length)[:, None, None]
        row = jnp.where(row < rows, row, row - rows)
    weight = None
    if probability is not None:
        number = starts * (columns // num_shards)
        weight = sampler.weight(probability.reshape(-1), number, env_steps, ring.hyper)
        weight = weight / weight.max()
    return Batch(
        _items(ring, row, column),
        env_steps=env_steps,
        memory=take(ring.memory, slot, column) if kept else None,
        mask=take(ring.mask, row, column),
        weight=weight,
        index=(slot, column),
    )


def judge(ring: Ring, sampler: Sampler, batch: Batch, priority: Tree) -> Ring:
    """The ring after an update fed back the priorities [n] of a batch; None for no priorities."""
    if priority is None:
        return ring
    slot, column = batch.index
    one = lambda state, *item: sampler.judged(state, item[0], item[1], item[2], ring.hyper)
    judged = jax.vmap(one)(ring.sampler, slot, column, priority.reshape(slot.shape))
    return dataclasses.replace(ring, sampler=judged)


def _items(ring: Ring, row: Array, column: Array) -> Transition:
    if not isinstance(ring.transitions, Packed):
        return take(ring.transitions, row, column)

    def found(row, column):
        records = [take(ring.transitions, row, column)]
        if ring.frames is not None:
            records += large.taken(ring.frames, row, column, ring.head, take)
        return [flat(record) for record in records]

    # Else XLA would draw the row again for every word, and compute its place for every number.
    leaves, *frames = staged(ring.filled >= 0, found, row, column)
    items = shaped(leaves, ring.transitions.layout)
    if ring.frames is None:
        return items
    before, after = (shaped(leaves, ring.frames.before.layout) for leaves in frames)
    return dataclasses.replace(
        items,
        timestep=large.joined(items.timestep, before),
        next_timestep=large.joined(items.next_timestep, after),
    )


def take(ring: Tree, row: Array, column: Array, columns_axis: int = 1) -> Tree:
    """What lies in a ring [L, B], or [B, L] with `columns_axis` 0, at `row` [..., shards,
    n / shards] and `column` [shards, n / shards] of each shard: [..., n]."""
    shards, window = column.shape[0], row.shape[:-2]

    def taken(x):
        before, after = x.shape[:columns_axis], x.shape[columns_axis + 1 :]
        x = x.reshape(*before, shards, -1, *after)
        x = jnp.moveaxis(x, columns_axis, 0)
        # One index: two would be put together again for every word.
        place = row * x.shape[2] + column if columns_axis else column * x.shape[2] + row
        x = x.reshape(shards, -1, *x.shape[3:])
        along = lambda x, at: x.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)
        found = jax.vmap(along, in_axes=(0, -2), out_axes=len(window))(x, place)
        return found.reshape(*window, -1, *x.shape[2:])

    return jax.tree.map(taken, ring)
