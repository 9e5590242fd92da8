"""A ring of transitions over time, and how batches are drawn from it.

`replay` writes its ring over and over; the ring of `dataset` is full and never written.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.staging import isolate
from jaxrl.core.types import Array, Batch, Key, Transition, Tree, struct
from jaxrl.sources import frames as frames_
from jaxrl.sources.frames import Frames
from jaxrl.sources.packing import Packed, flatten, unflatten
from jaxrl.sources.samplers import Sampler


@struct
class Ring:
    """State of a ring with L rows in time and a column for each of B streams."""

    source: Tree
    """State of the source that fills the ring."""
    transitions: Any
    """The transitions [L, B]: `Packed` in a replay buffer, `Shared` in a dataset."""
    mask: Array | None
    """The mask [L, B] of the source's batches, if they have one."""
    memory: Tree
    """The memory before each window that was collected, [L / T, B]; None unless it is kept."""
    head: Array
    """The row that is written next: int32."""
    filled: Array
    """Rows that hold experience, at most L: int32."""
    sampler: Tree
    """State of the sampler, leading axis [shards]."""
    hyper: dict[str, Any]
    frames: Frames | None = None
    """Large observations, which `transitions` lack."""


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
    """Draw a batch of `batch_size` items [n], or of windows [length, n] of consecutive rows of one
    column, never across the place where the newest row meets the oldest.

    env_steps: environment steps of the batch, float32 [].
    order: int32 [n], numbers of the items, split over devices, for a ring with one shard that is
        not split itself.
    """
    rows, columns = jax.tree.leaves(ring.transitions)[0].shape[:2]
    # An item starts at a slot: at any row, or only at rows with memory if that is kept.
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


def update_priorities(ring: Ring, sampler: Sampler, batch: Batch, priority: Tree) -> Ring:
    """Return the ring with new priorities [n] of the items of a batch; None changes nothing."""
    if priority is None:
        return ring
    slot, column = batch.index
    one = lambda state, *item: sampler.prioritize(state, item[0], item[1], item[2], ring.hyper)
    state = jax.vmap(one)(ring.sampler, slot, column, priority.reshape(slot.shape))
    return dataclasses.replace(ring, sampler=state)


def _items(ring: Ring, row: Array, column: Array) -> Transition:
    if not isinstance(ring.transitions, Packed):
        return take(ring.transitions, row, column)

    def gather(row, column):
        records = [take(ring.transitions, row, column)]
        if ring.frames is not None:
            records += frames_.read(ring.frames, row, column, head=ring.head, take=take)
        return [flatten(record) for record in records]

    # Unless isolated, XLA draws the row again for every word, and its place for every number.
    leaves, *frames = isolate(ring.filled >= 0, gather, row, column)
    items = unflatten(leaves, ring.transitions.layout)
    if ring.frames is None:
        return items
    before, after = (unflatten(leaves, ring.frames.before.layout) for leaves in frames)
    return dataclasses.replace(
        items,
        timestep=frames_.restore(items.timestep, before),
        next_timestep=frames_.restore(items.next_timestep, after),
    )


def take(ring: Tree, row: Array, column: Array, columns_axis: int = 1) -> Tree:
    """Gather items [..., n] from a ring [L, B], or [B, L] with `columns_axis` 0.

    row: [..., shards, n / shards], rows of the items in each shard.
    column: [shards, n / shards], columns within each shard.
    """
    shards, window = column.shape[0], row.shape[:-2]

    def gather(x):
        before, after = x.shape[:columns_axis], x.shape[columns_axis + 1 :]
        x = x.reshape(*before, shards, -1, *after)
        x = jnp.moveaxis(x, columns_axis, 0)
        # One index, since XLA would combine two of them again for every word.
        place = row * x.shape[2] + column if columns_axis else column * x.shape[2] + row
        x = x.reshape(shards, -1, *x.shape[3:])
        along = lambda x, at: x.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)
        found = jax.vmap(along, in_axes=(0, -2), out_axes=len(window))(x, place)
        return found.reshape(*window, -1, *x.shape[2:])

    return jax.tree.map(gather, ring)
