"""A window of experience as shuffled minibatches, drawn within each logical shard.

A row is what is shuffled: a transition, or the whole sequence of one environment where the agent
has memory. Environments are split evenly into `shards`, whatever the number of devices; each
minibatch takes equally many rows of every shard, so that devices which hold a shard each never
gather another's experience.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core import shuffle
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key, Tree


def check(num_envs: int, num_steps: int, minibatches: int, shards: int, sequences: bool) -> None:
    """Raises `UserError` unless the rows of every shard divide evenly into the minibatches."""
    if num_envs % shards:
        raise UserError(f"num_envs={num_envs} does not divide into num_shards={shards}.")
    rows = num_envs // shards * (1 if sequences else num_steps)
    if rows % minibatches:
        unit = "sequences (num_envs" if sequences else "steps (num_envs * num_steps"
        raise UserError(
            f"{rows} {unit} per shard) do not divide into minibatches={minibatches}; "
            f"choose a number of minibatches that divides {rows}."
        )


def chunk(chunk_rows: int, rows: int, steps: int = 1) -> int:
    """How many of a minibatch's `rows`, each of `steps` steps, a gradient takes at once; 0 for all.

    chunk_rows: at most so many steps; 0 for all, -1 for what suits the device (beyond the cache of
        a CPU, chunks are faster). Raises `UserError` for a number that does not divide the rows.
    """
    limit = chunk_rows
    if limit < 0:
        limit = 2048 if jax.default_backend() == "cpu" else 0
    limit = max(limit // steps, 1) if limit else 0
    if not limit or rows <= limit:
        return 0
    if chunk_rows < 0:
        divisor = next(n for n in range(limit, 0, -1) if rows % n == 0)
        return divisor if divisor > limit // 4 else 0  # many small chunks would be slower than one
    if rows % limit:
        raise UserError(f"chunk_rows={chunk_rows} does not divide a minibatch of {rows} rows.")
    return limit


def to_rows(window: Tree, shards: int, sequences: bool) -> Tree:
    """Leaves [T, B, ...] as rows: [shards, T * B / shards, ...], or [shards, B / shards, T, ...]
    for sequences."""

    def arrange(x: Array) -> Array:
        time, batch = x.shape[:2]
        x = x.reshape(time, shards, batch // shards, *x.shape[2:])
        if sequences:
            return jnp.moveaxis(x, 0, 2)
        return jnp.moveaxis(x, 0, 1).reshape(shards, -1, *x.shape[3:])

    return jax.tree.map(arrange, window)


def from_rows(rows: Tree, sequences: bool) -> Tree:
    """Rows [shards, n, ...] of a minibatch as one batch of transitions [B, ...], or as a window
    [T, B, ...] of sequences."""

    def arrange(x: Array) -> Array:
        x = x.reshape(-1, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0) if sequences else x

    return jax.tree.map(arrange, rows)


def take(rows: Tree, index: Array) -> Tree:
    """Row `index[s, i]` of each shard s: [shards, R, ...] -> [shards, n, ...]."""
    return jax.vmap(lambda x, i: jax.tree.map(lambda leaf: leaf[i], x))(rows, index)


def indices(
    key: Key, rows: int, shards: int, epochs: int, minibatches: int, method: str = "auto"
) -> Array:
    """Which rows each minibatch takes, int32 [epochs * minibatches, shards, rows / minibatches]:
    every epoch and shard has a permutation of its own (see `jaxrl.core.shuffle`)."""
    if minibatches == 1:  # the order within a minibatch means nothing
        return jnp.broadcast_to(jnp.arange(rows), (epochs, shards, rows))
    permute = lambda key: shuffle.permutation(key, rows, method)
    order = jax.vmap(jax.vmap(permute))(jax.random.split(key, (epochs, shards)))
    order = order.reshape(epochs, shards, minibatches, rows // minibatches)
    return jnp.moveaxis(order, 2, 1).reshape(epochs * minibatches, shards, -1)
