"""Rehearsal: fresh windows beside a uniform sample of all earlier ones."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import REPLICATED, Array, Batch, Key, Source, Tree, struct


@struct
class Reservoir:
    """A uniform sample of all columns so far, each of which is a window of one stream."""

    steps: Tree
    """The columns' transitions, masks and weights, leaves [C, T, ...]."""
    memory: Tree
    """The memory before each column, leaves [C, ...]."""
    seen: Array
    """Columns that were offered so far: int32."""


@struct
class RehearsalState:
    """State of a source with rehearsal."""

    source: Tree
    reservoir: Reservoir


def rehearsal(source: Source, capacity: int, replays: int) -> Source:
    """Add `replays` (R) old columns to the windows [T, B] of `source`: batches are [T, B + R].

    The first B columns are fresh. The others are drawn from a reservoir of `capacity` columns, in
    which every column of this run, the newest included, is equally likely to be (Vitter, 1985,
    algorithm R). So old tasks keep their share, as in CLEAR (Rolnick et al., 2019,
    arXiv:1811.11682).

    If two columns of one window choose the same place in the reservoir, one of them is kept.
    Batches have no tail. The source hears the feedback about the fresh columns. Raises `UserError`
    for sizes below 1, and for a source whose batches are not windows.
    """
    for name, value in {"capacity": capacity, "replays": replays}.items():
        if value < 1:
            raise UserError(f"{name} of a rehearsal must be at least 1, got {value}.")

    def window(state, policy, key):
        state, fresh, _ = source.collect(state, policy, key)
        batch = source.sample(state, fresh, key)
        if batch.transitions.reward.ndim < 2:
            raise UserError(f"rehearsal needs windows [T, B]; '{source.name}' hands out steps.")
        return by_column(batch)

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        shapes = jax.eval_shape(window, state, policy, key)
        room = lambda s: jax.ShapeDtypeStruct((capacity, *s.shape[1:]), s.dtype)
        steps, memory = trees.zeros(jax.tree.map(room, shapes))
        return RehearsalState(state, Reservoir(steps, memory, jnp.int32(0)))

    def collect(state, policy, key):
        key, place_key = jax.random.split(key)
        inner, fresh, metrics = source.collect(state.source, policy, key)
        sample_key, place_key = jax.random.split(place_key)
        batch = source.sample(inner, fresh, sample_key)
        reservoir = offer(state.reservoir, by_column(batch), place_key)
        filled = jnp.minimum(reservoir.seen, capacity) / capacity
        metrics = metrics | {"rehearsal_filled": m.mean(filled)}
        return RehearsalState(inner, reservoir), batch, metrics

    def sample(state, fresh, key):
        filled = jnp.minimum(state.reservoir.seen, capacity)
        index = jax.random.randint(key, (replays,), 0, filled)
        transitions, mask, weight = jax.tree.map(
            lambda new, old: jnp.concatenate([new, jnp.moveaxis(old[index], 0, 1)], 1),
            (fresh.transitions, fresh.mask, fresh.weight),
            state.reservoir.steps,
        )
        return dataclasses.replace(
            fresh,
            transitions=transitions,
            mask=mask,
            weight=weight,
            memory=jax.tree.map(
                lambda x, y: jnp.concatenate([x, y[index]]), fresh.memory, state.reservoir.memory
            ),
            tail=None,
        )

    def feedback(state, batch, feedback):
        steps, columns = batch.transitions.reward.shape
        fresh = columns - replays
        first = lambda x: x[:, :fresh] if jnp.shape(x)[:2] == (steps, columns) else x
        whole = batch.transitions, batch.mask, batch.weight, dict(feedback)
        transitions, mask, weight, rest = jax.tree.map(first, whole)
        memory = jax.tree.map(lambda x: x[:fresh], batch.memory)
        batch = dataclasses.replace(
            batch, transitions=transitions, memory=memory, mask=mask, weight=weight
        )
        return dataclasses.replace(state, source=source.feedback(state.source, batch, rest))

    return dataclasses.replace(
        source,
        name=f"rehearsal({source.name})",
        init=init,
        collect=collect,
        sample=sample,
        feedback=feedback,
        partition=RehearsalState(source.partition, REPLICATED),
    )


def by_column(batch: Batch) -> tuple[Tree, Tree]:
    """Return a batch's transitions, mask and weights, leaves [B, T, ...], and its memory [B]."""
    steps = batch.transitions, batch.mask, batch.weight
    return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), steps), batch.memory


def offer(reservoir: Reservoir, columns: tuple[Tree, Tree], key: Key) -> Reservoir:
    """Offer `columns`, leading axis [B], to the reservoir, and return it."""
    capacity = jax.tree.leaves(reservoir.steps)[0].shape[0]
    number = jax.tree.leaves(columns[0])[0].shape[0]
    count = reservoir.seen + jnp.arange(number)  # columns that were offered before each
    drawn = jnp.floor(jax.random.uniform(key, (number,)) * (count + 1)).astype(jnp.int32)
    place = jnp.where(count < capacity, count, drawn)  # a place beyond the end is dropped
    put = lambda x, y: x.at[place].set(y, mode="drop")
    return Reservoir(
        jax.tree.map(put, reservoir.steps, columns[0]),
        jax.tree.map(put, reservoir.memory, columns[1]),
        reservoir.seen + number,
    )
