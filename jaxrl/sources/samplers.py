"""Which of the items that a replay holds are drawn: all alike, or by priority.

Items lie in a ring of `rows` (one for each time step, or each window) by `columns` (the streams of
one shard). What a sampler knows of them is its state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import schedules
from jaxrl.core.types import Array, Hyper, Key, Tree, static, struct


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """How items are drawn from a ring, one shard of it.

    init(rows, columns) -> state, of an empty ring
    written(state, row, count) -> state, after `count` (static) rows from `row` on were overwritten
    draw(state, key, n, oldest, rows) -> (row [n], column [n], probability [n] or None), of the
        `rows` rows from `oldest` on, round and round; None where all are alike
    judged(state, row [n], column [n], priority [n], hyper) -> state, after an update fed
        priorities back
    weight(probability [n], items, env_steps, hyper) -> importance weights [n], 1 where all of
        `items` are as probable
    """

    name: str
    init: Callable[[int, int], Tree]
    written: Callable[[Tree, Array, int], Tree]
    draw: Callable[[Tree, Key, int, Array, Array], tuple[Array, Array, Array | None]]
    judged: Callable[[Tree, Array, Array, Array, Hyper], Tree]
    weight: Callable[[Array, Array, Array, Hyper], Array]
    hyper: Hyper = dataclasses.field(default_factory=dict)


# ------------------------------------------------------------------------------- all alike


@struct
class Uniform:
    rows: int = static()
    columns: int = static()


def _draw_uniform(state, key, n, oldest, rows):
    row_key, column_key = jax.random.split(key)
    row = (oldest + jax.random.randint(row_key, (n,), 0, rows)) % state.rows
    return row, jax.random.randint(column_key, (n,), 0, state.columns), None


UNIFORM = Sampler(
    "uniform",
    init=Uniform,
    written=lambda state, row, count: state,
    draw=_draw_uniform,
    judged=lambda state, row, column, priority, hyper: state,
    weight=lambda probability, items, env_steps, hyper: jnp.ones_like(probability),
)


# ------------------------------------------------------------------------------- by priority


@struct
class Masses:
    """Probabilities of items, but for a factor that all share, and their sums: an item is found by
    going down from these, of which each level is about the cube root of the rows wide."""

    mass: Array  # float32 [rows, columns]: priority ** exponent, 0 where nothing was written
    row_mass: Array  # float32 [groups * width * width]: of each row; 0 beyond the last
    block_mass: Array  # float32 [groups * width]: of each `width` rows
    largest: Array  # float32: the largest mass that an item was ever given

    @property
    def width(self) -> int:
        return _width(self.mass.shape[0])


def _width(rows: int) -> int:
    return round(rows ** (1 / 3))


def masses(mass: Array) -> Masses:
    """Those of items of these masses [rows, columns]."""
    rows, width = mass.shape[0], _width(mass.shape[0])
    row_mass = jnp.pad(mass.sum(1), (0, -rows % width**2))
    return Masses(mass, row_mass, row_mass.reshape(-1, width).sum(1), jnp.float32(1))


def _summed(state: Masses, mass: Array, row: Array) -> Masses:
    """The state of items of other masses in the rows `row` [n], which may come more than once."""
    row_mass = state.row_mass.at[row].set(mass[row].sum(1))
    block = row // state.width
    changed = row_mass.reshape(-1, state.width)[block].sum(1)
    return Masses(mass, row_mass, state.block_mass.at[block].set(changed), state.largest)


def _reached(mass: Array, place: Array) -> tuple[Array, Array]:
    """The item of each row of `mass` [n or 1, m] that covers `place` [n], and how far beyond the
    sum of those before it that is. Whatever rounding does, it has mass, if any has."""

    def passed(number, found):  # a plain loop: running sums [n, m] would take 4 times as long
        upto, index, before = found
        one = turned[number]
        here = (one > 0) & (upto <= place)
        return upto + one, jnp.where(here, number, index), jnp.where(here, upto, before)

    place, turned = jnp.maximum(place, 0), mass.T
    nothing = jnp.zeros_like(place)
    start = (nothing, nothing.astype(jnp.int32), nothing)
    _, index, before = jax.lax.fori_loop(0, mass.shape[1], passed, start, unroll=4)
    return index, place - before


SMALLEST = 1e-6  # what is added to a priority, so that every item can be drawn again


def proportional(
    exponent: float = 0.5,
    importance: float = 0.4,
    importance_steps: float = float("inf"),
    path: str = "priorities.",
) -> Sampler:
    """Proportional prioritization (Schaul et al., 2016, "Prioritized experience replay", section
    3.3): an item of priority p is drawn with probability p ** exponent / sum (equation 1),
    stratified over the batch; what is new has the largest priority so far.

    Importance weights are (items * probability) ** -importance (section 3.4), where the exponent
    grows linearly to 1 over `importance_steps` environment steps; `replay` divides them by their
    largest. All three are hyperparameters, called `path` and `exponent`, `importance` or
    `importance_steps`.
    """
    names = [path + name for name in ("exponent", "importance", "importance_steps")]
    values = (exponent, importance, importance_steps)
    hyper = {name: np.float32(value) for name, value in zip(names, values, strict=True)}

    def init(rows, columns):
        return masses(jnp.zeros((rows, columns)))

    def written(state, row, count):
        new = jnp.full((count, state.mass.shape[1]), state.largest)
        mass = jax.lax.dynamic_update_slice(state.mass, new, (row, jnp.zeros_like(row)))
        return _summed(state, mass, row + jnp.arange(count))

    def draw(state, key, n, oldest, rows):
        size, width = state.mass.shape[0], state.width

        def only(row, mass):
            """`mass` of rows, or of the blocks that begin there, where they may be drawn."""
            since = jnp.where(row < oldest, row + size, row) - oldest
            return jnp.where(since < rows, mass, 0)

        def of_rows(block):
            row = block[:, None] * width + jnp.arange(width)
            return only(row, state.row_mass.reshape(-1, width)[block])

        # All rows of a block may be drawn or none, but where the first and the last of them lie.
        blocks = only(jnp.arange(state.block_mass.size) * width, state.block_mass)
        ends = jnp.stack([oldest, (oldest + rows - 1) % size]) // width
        blocks = blocks.at[ends].set(of_rows(ends).sum(1)).reshape(-1, width)
        total = blocks.sum()
        place = (jnp.arange(n) + jax.random.uniform(key, (n,))) / n * total
        group, place = _reached(blocks.sum(1)[None], place)
        block, place = _reached(blocks[group], place)
        block = group * width + block
        row, place = _reached(of_rows(block), place)
        row = block * width + row
        mass = state.mass[row]
        column, _ = _reached(mass, place)
        return row, column, jnp.take_along_axis(mass, column[:, None], 1)[:, 0] / total

    def judged(state, row, column, priority, hyper):
        mass = (priority + SMALLEST) ** hyper[names[0]]
        state = _summed(state, state.mass.at[row, column].set(mass), row)
        return dataclasses.replace(state, largest=jnp.maximum(state.largest, mass.max()))

    def weight(probability, items, env_steps, hyper):
        done = schedules.progress(env_steps, hyper[names[2]])
        exponent = schedules.linear(hyper[names[1]], jnp.float32(1), done)
        return (items * probability) ** -exponent

    return Sampler("proportional", init, written, draw, judged, weight, hyper)
