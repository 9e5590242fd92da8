"""Shuffled minibatches of a window of experience, drawn within each logical shard.

A row is what is shuffled, a unit: a step, the whole sequence of one environment where the agent has
memory, or a group of neighboring environments that losses compare. Environments are split evenly
into `shards`, whatever the number of devices; each minibatch takes equally many rows of every
shard, so that devices which hold a shard each never gather another's experience.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core import shuffle
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Key, Tree, struct


@struct
class Minibatch:
    """Data that a gradient step sees.

    x: elements, any tree whose leaves have the same leading axes.
    mask: which of them count; None for all.
    weight: weight of each in the loss, such as importance weights; None for equal ones.
    """

    x: Tree
    mask: Array | None = None
    weight: Array | None = None


def minibatch_of(data: Tree, mask: Array | None = None, weight: Array | None = None) -> Minibatch:
    """Return `data` as a `Minibatch`: a `Batch` stands for its transitions with their mask and
    weight, anything else for itself."""
    if isinstance(data, Batch):
        data = Minibatch(data.transitions, data.mask, data.weight)
    elif not isinstance(data, Minibatch):
        data = Minibatch(data)
    mask = data.mask if mask is None else mask
    weight = data.weight if weight is None else weight
    return Minibatch(data.x, mask, weight)


@dataclasses.dataclass(frozen=True)
class Unit:
    """Rows that minibatches keep together.

    sequences: whether all time steps of an environment stay together.
    columns: number of neighboring environments that stay together, such as the two answers of a
        pair or all answers of a group.
    """

    sequences: bool = False
    columns: int = 1

    def __str__(self) -> str:
        what = "sequences" if self.sequences else "steps"
        return what if self.columns == 1 else f"groups of {self.columns} {what}"

    def keeps(self, other: Unit) -> bool:
        """Return whether minibatches of these units keep units of another kind whole too."""
        return (self.sequences or not other.sequences) and self.columns % other.columns == 0

    def values(self, elements: Array) -> Array:
        """Reduce elements [..., B] of the same unit to one: whether any of them is true.

        Returns bool [..., B / columns]; of sequences [T, B] bool [B / columns].
        """
        elements = elements.any(0) if self.sequences else elements
        return elements.reshape(*elements.shape[:-1], -1, self.columns).any(-1)

    def spread(self, values: Array) -> Array:
        """Repeat a value of each unit for its columns: [..., B], of sequences [1, B], so that rows
        of elements and their units' values can be cut alike."""
        wide = jnp.repeat(values, self.columns, -1)
        return wide[None] if self.sequences else wide

    def gather(self, spread: Array) -> Array:
        """Undo `spread`."""
        return (spread[0] if self.sequences else spread)[..., :: self.columns]


STEP, SEQUENCE = Unit(), Unit(sequences=True)


def check(num_envs: int, num_steps: int, minibatches: int, shards: int, unit: Unit = STEP) -> None:
    """Raise `UserError` unless the rows of every shard divide evenly into the minibatches."""
    if num_envs % shards:
        raise UserError(f"num_envs={num_envs} does not divide into num_shards={shards}.")
    if num_envs // shards % unit.columns:
        raise UserError(
            f"{num_envs // shards} environments per shard do not divide into groups of "
            f"{unit.columns}."
        )
    rows = num_envs // shards // unit.columns * (1 if unit.sequences else num_steps)
    if rows % minibatches:
        what = "sequences (num_envs" if unit.sequences else "steps (num_envs * num_steps"
        if unit.columns > 1:
            what = f"groups of {unit.columns} {what}"
        raise UserError(
            f"{rows} {what} per shard) do not divide into minibatches={minibatches}; "
            f"choose a number of minibatches that divides {rows}."
        )


def chunk(chunk_rows: int, rows: int, steps: int = 1) -> int:
    """Return how many of a minibatch's `rows`, each of `steps` steps, a gradient takes at once.

    chunk_rows: at most so many steps; 0 for all, -1 for what suits the device (beyond the cache of
        a CPU, chunks are faster).

    Returns 0 for all. Raises `UserError` for a number that does not divide the rows.
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


def to_rows(window: Tree, shards: int, unit: Unit = STEP) -> Tree:
    """Arrange leaves [T, B, ...] as rows of units.

    Returns leaves [shards, T * B / shards, ...], or [shards, B / shards, T, ...] for sequences.
    With groups of `unit.columns` environments there are fewer rows, and a last axis of that size
    before "...".
    """

    def arrange(x: Array) -> Array:
        time, batch = x.shape[:2]
        group = () if unit.columns == 1 else (unit.columns,)
        x = x.reshape(time, shards, batch // shards // unit.columns, *group, *x.shape[2:])
        if unit.sequences:
            return jnp.moveaxis(x, 0, 2)
        return jnp.moveaxis(x, 0, 1).reshape(shards, -1, *x.shape[3:])

    return jax.tree.map(arrange, window)


def from_rows(rows: Tree, unit: Unit = STEP) -> Tree:
    """Arrange the rows [shards, n, ...] of a minibatch as elements [B, ...], or as a window
    [T, B, ...] of sequences; the members of a group are neighbors."""

    def arrange(x: Array) -> Array:
        x = x.reshape(-1, *x.shape[2:])
        if unit.columns == 1:
            return jnp.moveaxis(x, 1, 0) if unit.sequences else x
        if unit.sequences:
            x = jnp.moveaxis(x, 1, 0)
            return x.reshape(x.shape[0], -1, *x.shape[3:])
        return x.reshape(-1, *x.shape[2:])

    return jax.tree.map(arrange, rows)


def take(rows: Tree, index: Array) -> Tree:
    """Take row `index[s, i]` of each shard s: [shards, R, ...] -> [shards, n, ...]."""
    return jax.vmap(lambda x, i: jax.tree.map(lambda leaf: leaf[i], x))(rows, index)


def indices(
    key: Key, rows: int, shards: int, epochs: int, minibatches: int, method: str = "auto"
) -> Array:
    """Draw the rows of each minibatch, int32 [epochs * minibatches, shards, rows / minibatches].

    Every epoch and shard has a permutation of its own (see `jaxrl.core.shuffle`).
    """
    if minibatches == 1:  # the order within a minibatch means nothing
        return jnp.broadcast_to(jnp.arange(rows), (epochs, shards, rows))
    permute = lambda key: shuffle.permutation(key, rows, method)
    order = jax.vmap(jax.vmap(permute))(jax.random.split(key, (epochs, shards)))
    order = order.reshape(epochs, shards, minibatches, rows // minibatches)
    return jnp.moveaxis(order, 2, 1).reshape(epochs * minibatches, shards, -1)


def pack(running: Array) -> tuple[Array, Array]:
    """Find room for the episodes of a minibatch in few columns: the longest first, each in the
    first column that has room for it (first fit decreasing; Johnson et al., 1974).

    running: bool [T, n], true from the first step of each column to its episode's end.

    Returns where each step comes from, int32 [T, n], the number t * n + i of step t of column i,
    or -1 where nothing lies; and how many leading columns are filled, int32 [].
    """
    time, columns = running.shape
    lengths = running.sum(0, dtype=jnp.int32)

    def place(room, length):
        column = (room >= length).argmax()
        return room.at[column].add(-length), (column, time - room[column])

    order = jnp.argsort(-lengths)
    room, found = jax.lax.scan(place, jnp.full(columns, time), lengths[order])
    column, start = (jnp.zeros_like(x).at[order].set(x) for x in found)
    moment = jnp.arange(time)[:, None]
    to = jnp.where(running, (start + moment) * columns + column, time * columns)
    steps = (moment * columns + jnp.arange(columns)).astype(jnp.int32)
    origin = jnp.full(time * columns, -1, jnp.int32).at[to].set(steps, mode="drop")
    return origin.reshape(time, columns), (room < time).sum(dtype=jnp.int32)


def move(window: Tree, origin: Array) -> Tree:
    """Move the steps of a minibatch, [T, n, ...] or [1, n, ...], to where `pack` found room for
    them. Where nothing lies, the first step of the first column stands."""
    columns = origin.shape[1]
    moment, column = jnp.divmod(jnp.maximum(origin, 0), columns)
    return jax.tree.map(lambda x: x[jnp.minimum(moment, x.shape[0] - 1), column], window)
