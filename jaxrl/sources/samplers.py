"""Which of the items that a replay holds are drawn: all alike, or by priority.

Items lie in a ring of `rows` (one for each time step, or each window) by `columns` (the streams of
one shard). What a sampler knows of them is its state.
"""

from __future__ import annotations

import dataclasses
import math
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
    weight(probability [n], items, frames, hyper) -> importance weights [n], 1 where all of `items`
        are as probable
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
    weight=lambda probability, items, frames, hyper: jnp.ones_like(probability),
)


# ------------------------------------------------------------------------------- by priority


@struct
class Masses:
    """Probabilities of items, but for a factor that all share."""

    mass: Array  # float32 [rows, columns]: priority ** exponent, 0 where nothing was written
    row_mass: Array  # float32 [rows]: its sums
    largest: Array  # float32: the largest mass that an item was ever given


def _reached(mass: Array, place: Array) -> tuple[Array, Array]:
    """Where the running sums of each row of `mass` [n or 1, m] exceed `place` [n], and how far
    beyond the sum before that the place is. Whatever rounding does, what is reached has mass."""
    upto = jnp.broadcast_to(jnp.cumsum(mass, 1), (place.shape[0], mass.shape[1]))
    place = jnp.clip(place, 0, jnp.nextafter(upto[:, -1], jnp.zeros_like(place)))
    index = (upto <= place[:, None]).sum(1, dtype=jnp.int32)
    before = jnp.where(index > 0, jnp.take_along_axis(upto, index[:, None] - 1, 1)[:, 0], 0)
    return index, place - before


SMALLEST = 1e-6  # what is added to a priority, so that every item can be drawn again


def proportional(
    exponent: float = 0.5,
    importance: float = 0.4,
    importance_steps: float = float("inf"),
    path: str = "priorities.",
) -> Sampler:
    """Proportional prioritisation (Schaul et al., 2016, "Prioritized experience replay", section
    3.3): an item of priority p is drawn with probability p ** exponent / sum (equation 1),
    stratified over the batch; what is new has the largest priority so far.

    Importance weights are (items * probability) ** -importance (section 3.4), where the exponent
    grows linearly to 1 over `importance_steps` environment steps; `replay` divides them by their
    largest. All three are hyper-parameters, called `path` and `exponent`, `importance` or
    `importance_steps`.
    """
    names = [path + name for name in ("exponent", "importance", "importance_steps")]
    values = (exponent, importance, importance_steps)
    hyper = {name: np.float32(value) for name, value in zip(names, values, strict=True)}

    def init(rows, columns):
        return Masses(jnp.zeros((rows, columns)), jnp.zeros(rows), jnp.float32(1.0))

    def written(state, row, count):
        columns = state.mass.shape[1]
        new = jnp.full((count, columns), state.largest)
        mass = jax.lax.dynamic_update_slice(state.mass, new, (row, jnp.zeros_like(row)))
        # As the sum of a row is taken where it is judged, so that both are the same to the bit.
        row_mass = jax.lax.dynamic_update_slice(state.row_mass, new.sum(1), (row,))
        return Masses(mass, row_mass, state.largest)

    def draw(state, key, n, oldest, rows):
        size = state.row_mass.shape[0]
        drawable = (jnp.arange(size) - oldest) % size < rows
        # Blocks of rows, the rows of a block, the columns of a row: no running sum is long.
        width = math.isqrt(size - 1) + 1
        masses = jnp.pad(jnp.where(drawable, state.row_mass, 0.0), (0, -size % width))
        blocks = masses.reshape(-1, width)
        total = blocks.sum()
        place = (jnp.arange(n) + jax.random.uniform(key, (n,))) / n * total
        block, place = _reached(blocks.sum(1)[None], place)
        within, place = _reached(blocks[block], place)
        row = block * width + within
        mass = state.mass[row]
        column, _ = _reached(mass, place)
        return row, column, jnp.take_along_axis(mass, column[:, None], 1)[:, 0] / total

    def judged(state, row, column, priority, hyper):
        mass = (priority + SMALLEST) ** hyper[names[0]]
        masses = state.mass.at[row, column].set(mass)
        row_mass = state.row_mass.at[row].set(masses[row].sum(1))
        return Masses(masses, row_mass, jnp.maximum(state.largest, mass.max()))

    def weight(probability, items, frames, hyper):
        done = schedules.progress(frames, hyper[names[2]])
        exponent = schedules.linear(hyper[names[1]], jnp.float32(1), done)
        return (items * probability) ** -exponent

    return Sampler("proportional", init, written, draw, judged, weight, hyper)
