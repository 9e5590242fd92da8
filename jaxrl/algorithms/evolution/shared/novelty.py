"""Novelty of behaviors: distance from those seen before (Lehman and Stanley, 2011, "Abandoning
objectives")."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Key, struct


@struct
class Memory:
    """Memory of the last `A` behaviors stored."""

    descriptors: Array  # [A, K]
    count: Array  # int32: stored so far; beyond A the oldest are overwritten


def empty(capacity: int, size: int) -> Memory:
    """Return an empty memory."""
    return Memory(jnp.zeros((capacity, size)), jnp.int32(0))


def novelty(descriptors: Array, memory: Memory, neighbors: int) -> Array:
    """Return the mean distance of each of `descriptors` [P, K] to its nearest `neighbors` among the
    others and the memory (or to all, if there are fewer). A descriptor that is not finite has
    novelty -inf and is not a neighbor of any other."""
    known = jnp.arange(memory.descriptors.shape[0]) < memory.count
    valid = jnp.isfinite(descriptors).all(-1)
    others = jnp.concatenate([jnp.where(valid[:, None], descriptors, 0), memory.descriptors])
    exists = jnp.concatenate([valid, known])
    distance = jnp.sqrt(jnp.square(others[: len(valid), None] - others).sum(-1))
    itself = jnp.eye(len(valid), len(others), dtype=bool)
    distance = jnp.where(exists & ~itself, distance, jnp.inf)
    nearest = -jax.lax.top_k(-distance, min(neighbors, len(others) - 1))[0]
    found = jnp.isfinite(nearest)
    mean = jnp.where(found, nearest, 0).sum(-1) / jnp.maximum(found.sum(-1), 1)
    return jnp.where(valid, mean, -jnp.inf)


def remember(memory: Memory, descriptors: Array, key: Key, rate: Array) -> Memory:
    """Store each of `descriptors` [P, K], P <= A, with probability `rate`."""
    capacity = memory.descriptors.shape[0]
    kept = jax.random.uniform(key, descriptors.shape[:1]) < rate
    kept &= jnp.isfinite(descriptors).all(-1)
    place = (memory.count + jnp.cumsum(kept) - 1) % capacity
    place = jnp.where(kept, place, capacity)  # out of bounds: dropped
    return Memory(
        memory.descriptors.at[place].set(descriptors, mode="drop"),
        memory.count + kept.sum(dtype=jnp.int32),
    )
