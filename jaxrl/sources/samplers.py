"""Samplers choose the items that are drawn from a replay buffer: uniformly, or by priority.

Items lie in a ring of `rows` (one for each time step, or each window) by `columns` (the streams of
one shard). What a sampler knows about them is its state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import schedules
from jaxrl.core.types import Array, Hyper, Key, Tree, static, struct


class Overwrite(Protocol):
    def __call__(self, state: Tree, row: Array, count: int, /) -> Tree:
        """Return the state after rows were overwritten with new items.

        state: the sampler's state.
        row: the first row, int32 [].
        count: number of rows, static.
        """
        ...


class Draw(Protocol):
    def __call__(
        self, state: Tree, key: Key, n: int, oldest: Array, rows: Array, /
    ) -> tuple[Array, Array, Array | None]:
        """Draw items.

        state: the sampler's state.
        key: source of randomness.
        n: number of items, static.
        oldest: the first row to draw from, int32 [].
        rows: number of rows to draw from, from `oldest` on around the ring, int32 [].

        Returns the rows [n] and columns [n] of the items, and their probabilities [n], or None if
        all items are equally likely.
        """
        ...


class Prioritize(Protocol):
    def __call__(
        self, state: Tree, row: Array, column: Array, priority: Array, hyper: Hyper, /
    ) -> Tree:
        """Return the state after an update has fed back priorities.

        state: the sampler's state.
        row, column: places of the items, int32 [n].
        priority: their new priorities, float32 [n].
        hyper: values of the sampler's hyperparameters.
        """
        ...


class Weight(Protocol):
    def __call__(
        self, probability: Array, items: Array, env_steps: Array, hyper: Hyper, /
    ) -> Array:
        """Return importance weights [n], which are 1 if all items are equally likely.

        probability: probabilities of the items that were drawn, float32 [n].
        items: number of items to draw from, int32 [].
        env_steps: environment steps so far, float32 [].
        hyper: values of the sampler's hyperparameters.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """A way to draw items from one shard of a ring."""

    name: str
    """Name in messages."""
    init: Callable[[int, int], Tree]
    """The state of an empty ring, from its numbers of rows and columns."""
    overwrite: Overwrite
    """The function that accounts for new items."""
    draw: Draw
    """The function that chooses items."""
    prioritize: Prioritize
    """The function that learns priorities."""
    weight: Weight
    """The function that corrects for unequal probabilities."""
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """Default values of the sampler's hyperparameters."""


# ------------------------------------------------------------------------------- uniformly


@struct
class Uniform:
    """State of uniform sampling: the size of the ring."""

    rows: int = static()
    columns: int = static()


def _draw_uniform(state, key, n, oldest, rows):
    row_key, column_key = jax.random.split(key)
    row = (oldest + jax.random.randint(row_key, (n,), 0, rows)) % state.rows
    return row, jax.random.randint(column_key, (n,), 0, state.columns), None


UNIFORM = Sampler(
    "uniform",
    init=Uniform,
    overwrite=lambda state, row, count: state,
    draw=_draw_uniform,
    prioritize=lambda state, row, column, priority, hyper: state,
    weight=lambda probability, items, env_steps, hyper: jnp.ones_like(probability),
)


# ------------------------------------------------------------------------------- by priority


@struct
class Masses:
    """State of sampling by priority: probabilities of the items, up to a common factor, and their
    sums. An item is found by descending through the sums, each level of which is about as wide as
    the cube root of the rows."""

    mass: Array
    """Masses, priority ** exponent, or 0 where nothing was written: float32 [rows, columns]."""
    row_mass: Array
    """Sums of the rows, 0 beyond the last row: float32 [groups * width * width]."""
    block_mass: Array
    """Sums of blocks of `width` rows: float32 [groups * width]."""
    largest: Array
    """The largest mass that an item was ever given: float32 []."""

    @property
    def width(self) -> int:
        """Rows of a block, and blocks of a group."""
        return _width(self.mass.shape[0])


def _width(rows: int) -> int:
    return round(rows ** (1 / 3))


def masses(mass: Array) -> Masses:
    """Make the state for items of these masses [rows, columns]."""
    rows, width = mass.shape[0], _width(mass.shape[0])
    row_mass = jnp.pad(mass.sum(1), (0, -rows % width**2))
    return Masses(mass, row_mass, row_mass.reshape(-1, width).sum(1), jnp.float32(1))


def _set_masses(state: Masses, mass: Array, row: Array) -> Masses:
    """Return the state with the masses `mass`, which differ from its own only in the rows `row`
    [n], some of which may be equal."""
    row_mass = state.row_mass.at[row].set(mass[row].sum(1))
    block = row // state.width
    changed = row_mass.reshape(-1, state.width)[block].sum(1)
    return Masses(mass, row_mass, state.block_mass.at[block].set(changed), state.largest)


def _find(mass: Array, place: Array) -> tuple[Array, Array]:
    """Find the item in each row of `mass` [n or 1, m] that covers `place` [n] in the running sum.
    Returns its index, and how far `place` is beyond the sum of the items before it. Whatever
    rounding does, the item has mass, if any has."""

    def step(number, found):  # a plain loop, since running sums [n, m] take 4 times as long
        upto, index, before = found
        one = turned[number]
        here = (one > 0) & (upto <= place)
        return upto + one, jnp.where(here, number, index), jnp.where(here, upto, before)

    place, turned = jnp.maximum(place, 0), mass.T
    nothing = jnp.zeros_like(place)
    start = (nothing, nothing.astype(jnp.int32), nothing)
    _, index, before = jax.lax.fori_loop(0, mass.shape[1], step, start, unroll=4)
    return index, place - before


SMALLEST = 1e-6  # added to priorities, so that every item can be drawn again


def proportional(
    exponent: float = 0.5,
    importance: float = 0.4,
    importance_steps: float = float("inf"),
    path: str = "priorities.",
) -> Sampler:
    """Sample in proportion to priorities (Schaul et al., 2016, "Prioritized experience replay",
    section 3.3). An item of priority p is drawn with probability p ** exponent / sum (equation 1),
    stratified over the batch. New items get the largest priority so far.

    Importance weights are (items * probability) ** -importance (section 3.4), divided by the
    largest one in the batch. Their exponent grows linearly from `importance` to 1 over
    `importance_steps` environment steps.

    path: prefix of the names of the three hyperparameters `exponent`, `importance` and
        `importance_steps`.
    """
    names = [path + name for name in ("exponent", "importance", "importance_steps")]
    values = (exponent, importance, importance_steps)
    hyper = {name: np.float32(value) for name, value in zip(names, values, strict=True)}

    def init(rows, columns):
        return masses(jnp.zeros((rows, columns)))

    def overwrite(state, row, count):
        new = jnp.full((count, state.mass.shape[1]), state.largest)
        mass = jax.lax.dynamic_update_slice(state.mass, new, (row, jnp.zeros_like(row)))
        return _set_masses(state, mass, row + jnp.arange(count))

    def draw(state, key, n, oldest, rows):
        size, width = state.mass.shape[0], state.width

        def restrict(row, mass):
            """Keep the mass of rows, or of blocks that begin there, that may be drawn."""
            since = jnp.where(row < oldest, row + size, row) - oldest
            return jnp.where(since < rows, mass, 0)

        def row_masses(block):
            row = block[:, None] * width + jnp.arange(width)
            return restrict(row, state.row_mass.reshape(-1, width)[block])

        # All rows of a block may be drawn, or none, except in the blocks of the first and last row.
        blocks = restrict(jnp.arange(state.block_mass.size) * width, state.block_mass)
        ends = jnp.stack([oldest, (oldest + rows - 1) % size]) // width
        blocks = blocks.at[ends].set(row_masses(ends).sum(1)).reshape(-1, width)
        total = blocks.sum()
        place = (jnp.arange(n) + jax.random.uniform(key, (n,))) / n * total
        group, place = _find(blocks.sum(1)[None], place)
        block, place = _find(blocks[group], place)
        block = group * width + block
        row, place = _find(row_masses(block), place)
        row = block * width + row
        mass = state.mass[row]
        column, _ = _find(mass, place)
        return row, column, jnp.take_along_axis(mass, column[:, None], 1)[:, 0] / total

    def prioritize(state, row, column, priority, hyper):
        mass = (priority + SMALLEST) ** hyper[names[0]]
        state = _set_masses(state, state.mass.at[row, column].set(mass), row)
        return dataclasses.replace(state, largest=jnp.maximum(state.largest, mass.max()))

    def weight(probability, items, env_steps, hyper):
        done = schedules.progress(env_steps, hyper[names[2]])
        exponent = schedules.linear(hyper[names[1]], jnp.float32(1), done)
        return (items * probability) ** -exponent

    return Sampler("proportional", init, overwrite, draw, prioritize, weight, hyper)
