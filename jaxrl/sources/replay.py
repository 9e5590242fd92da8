"""Replay buffer: the last transitions of a source, drawn again and again."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxrl.core import hyper as hyperparameters
from jaxrl.core.devices import BATCH
from jaxrl.core.errors import UserError
from jaxrl.core.types import REPLICATED, Batch, Policy, Source, Transition, Tree
from jaxrl.sources import frames, packing, ring
from jaxrl.sources.ring import Ring
from jaxrl.sources.rollouts import check_shards
from jaxrl.sources.samplers import UNIFORM, Sampler

SPLIT: Any = PartitionSpec(None, BATCH)
ENDS = 8  # rows for each end of an episode that there is room for, where observations are large


def replay(
    source: Source,
    capacity: int,
    batch_size: int,
    length: int | None = None,
    sampler: Sampler = UNIFORM,
    warmup: int = 0,
    keep_memory: bool = False,
    num_shards: int = 1,
) -> Source:
    """Keep the last `capacity` transitions of `source`, and draw batches of `batch_size` (n).

    Large observations are stored once, in their own dtype, though each belongs to two transitions
    (`jaxrl.sources.frames`). If the episodes of a stream have fewer than 8 steps on average, fewer
    than `capacity` transitions of such observations are kept.

    length: None for batches of single transitions [n]; otherwise batches are windows [length, n] of
        consecutive steps of one stream. Windows may start anywhere and go on across the end of an
        episode, where `first` is set at the next step, but never across the place where the newest
        experience meets the oldest. Agents make n-step returns of them, since agents discount.
    sampler: which items are drawn; the `priority` [n] that an update feeds back goes to it.
    warmup: environment steps that are collected before the first update, at least one window
        (`Source.warmup` counts windows).
    keep_memory: whether windows start where those of the source did, and come with the agent's
        memory before them (the stored state of Kapturowski et al., 2019, "Recurrent experience
        replay").
    num_shards: logical shards of the streams, each of which contributes equally to a batch.

    Raises `UserError` for sizes that do not fit, when the algorithm is built.
    """
    for name, value in {"capacity": capacity, "batch_size": batch_size, "length": length}.items():
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, got {value}.")
    if warmup < 0:
        raise UserError(f"warmup must be at least 0 environment steps, got {warmup}.")
    check_shards(num_shards, batch_size=batch_size)
    if keep_memory and length is None:
        raise UserError("keep_memory needs a length; single transitions are drawn without memory.")
    span = length or 1
    windows = max(1, math.ceil(warmup / source.env_steps))

    def init(key, hyper, policy):
        inner = source.init(jax.random.split(key)[0], hyper, policy)
        fresh = jax.eval_shape(source.collect, inner, policy, key)[1]
        time, batch = fresh.transitions.reward.shape[:2]
        held = _num_windows(source, capacity, span, windows, num_shards, time, batch)
        rows = held * time
        slots = held if keep_memory else rows
        paths = frames.large_leaves(fresh)
        ends = min(rows, max(rows // ENDS, span + time))
        begin = lambda: sampler.init(slots, batch // num_shards)
        return Ring(
            inner,
            _empty(jax.eval_shape(_record, frames.cut(fresh.transitions, paths)), rows),
            _empty(fresh.mask, rows),
            _empty(jax.eval_shape(_as_row, fresh.memory), held) if keep_memory else None,
            jnp.int32(0),
            jnp.int32(0),
            jax.vmap(begin, axis_size=num_shards)(),
            {name: jnp.asarray(hyper[name], jnp.float32) for name in sampler.hyper},
            frames.empty(fresh, paths, rows, ends) if paths else None,
        )

    def write(state: Ring, inner: Tree, fresh: Batch) -> Ring:
        rows, time = state.transitions.words.shape[0], fresh.transitions.first.shape[0]
        put = lambda old, new, at: jax.tree.map(
            lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, at, 0), old, new
        )
        slot, count = state.head, time
        memory = state.memory
        if keep_memory:
            slot, count = state.head // time, 1
            memory = put(memory, _as_row(fresh.memory), slot)
        overwrite = lambda state: sampler.overwrite(state, slot, count)
        held, paths, filled = state.frames, frames.large_leaves(fresh), state.filled + time
        if held is not None:
            held, whole = frames.write(held, fresh, paths, head=state.head)
            filled = jnp.minimum(filled, whole // time * time)
        return Ring(
            inner,
            put(state.transitions, _record(frames.cut(fresh.transitions, paths)), state.head),
            put(state.mask, fresh.mask, state.head),
            memory,
            (state.head + time) % rows,
            jnp.minimum(filled, rows),
            jax.vmap(overwrite, axis_size=num_shards)(state.sampler),
            state.hyper,
            held,
        )

    @jax.jit  # traced once: for filling the buffer before the first update, and for the loop
    def collect(state: Ring, policy: Policy, key):
        inner, fresh, metrics = source.collect(state.source, policy, key)
        return write(state, inner, fresh), fresh, metrics

    def sample(state: Ring, fresh: Batch, key) -> Batch:
        return ring.draw(state, sampler, key, fresh.env_steps, batch_size, length, num_shards)

    def feedback(state: Ring, batch: Batch, feedback):
        state = ring.update_priorities(state, sampler, batch, feedback.get("priority"))
        rest = {name: value for name, value in feedback.items() if name != "priority"}
        return dataclasses.replace(state, source=source.feedback(state.source, batch, rest))

    return Source(
        f"{sampler.name} replay({source.name})",
        init,
        collect,
        sample,
        feedback,
        env_steps=source.env_steps,
        warmup=windows,
        num_envs=source.num_envs,
        host_play=source.host_play,
        hyper=hyperparameters.merge(source.hyper, sampler.hyper),
        partition=Ring(
            source.partition,
            SPLIT,
            SPLIT,
            SPLIT,
            REPLICATED,
            REPLICATED,
            PartitionSpec(BATCH),
            REPLICATED,
            SPLIT,
        ),
    )


def _record(transitions: Transition) -> packing.Packed:
    return packing.pack(transitions, 2)


def _as_row(memory: Tree) -> Tree:
    """Reshape memory [B] to one row [1, B] of a ring."""
    return jax.tree.map(lambda x: x[None], memory)


def _empty(window: Tree, rows: int) -> Tree:
    """Make an empty ring of `rows` for a window [T, B], given as shapes."""
    return jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), window)


def _num_windows(source, capacity, span, warm, shards, time, batch) -> int:
    """Return how many windows [T, B] of `source` fit. Raises `UserError` for too few of them, and
    for streams or a warm-up that do not fit."""
    if batch % shards:
        raise UserError(
            f"The {batch} streams of '{source.name}' do not divide into {shards} shards."
        )
    held = capacity // (time * batch)
    if held < max(1, math.ceil(span / time)):
        least = max(1, math.ceil(span / time)) * time * batch
        raise UserError(
            f"capacity is {capacity}; a replay buffer of '{source.name}' needs at least {least}."
        )
    if warm * time < span:
        raise UserError(
            f"A window has {span} steps and each stream only {warm * time} at the first update; "
            f"say warmup={span * batch} or more."
        )
    return held
