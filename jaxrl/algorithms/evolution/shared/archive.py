"""Archive with one elite per cell of the descriptor space, as arrays of fixed size.

A cell's elite is one individual: genotype, fitness and descriptor are always written together, and
exactly one of the candidates for a cell is chosen, the first of the best. NaN and infinite scores
and descriptors never enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key, struct

NONE = -1  # in place of a cell, for candidates that have none

Cells = Callable[[Array], Array]  # descriptors [P, K] -> cells, int32 [P]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Description of the cells, as in the settings."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    cells: tuple[int, ...]
    centroids: int = 0


@struct
class Archive:
    """Archive of `C` cells; those without an elite have fitness -inf."""

    genotypes: Array  # [C, D]
    fitness: Array  # [C]
    descriptors: Array  # [C, K]

    @property
    def has_elite(self) -> Array:
        """Mask of the cells with an elite, bool [C]."""
        return self.fitness > -jnp.inf


def empty(cells: int, dimension: int, descriptors: int) -> Archive:
    """Return an archive without elites."""
    return Archive(
        jnp.zeros((cells, dimension)),
        jnp.full(cells, -jnp.inf),
        jnp.zeros((cells, descriptors)),
    )


# ------------------------------------------------------------------------------- cells


def cells(layout: Layout) -> tuple[Cells, int]:
    """Return the function from descriptors to cells, and the number of cells: a grid of
    `layout.cells` between `low` and `high`, or with `centroids` > 0 the cells of that many points
    (`cvt`). Descriptors outside belong to the nearest border cell; those that are not finite belong
    to none (`NONE`).

    Raises `UserError` unless low, high (and cells, in a grid) have one number for each descriptor,
    and low is below high.
    """
    size = len(layout.low)
    if not size:
        raise UserError(
            "The archive has no descriptors: set `descriptor` to measures of an episode, such as "
            "[observation.0], and for each of them `low`, `high` and, without `centroids`, `cells`."
        )
    sizes = {len(layout.high)} | (set() if layout.centroids else {len(layout.cells)})
    if sizes != {size} or not all(map(np.less, layout.low, layout.high)):
        raise UserError(
            f"The archive needs a low < high and a number of cells for each descriptor, got low="
            f"{layout.low}, high={layout.high}, cells={layout.cells}."
        )
    if layout.centroids < 0 or (not layout.centroids and min(layout.cells) < 1):
        raise UserError(
            f"An archive of cells={layout.cells}, centroids={layout.centroids} has no cell."
        )
    low, high = jnp.float32(layout.low), jnp.float32(layout.high)
    if layout.centroids:
        points = jnp.asarray(cvt(layout.centroids, size))
    else:
        points = None
    counts = np.asarray(layout.cells)

    def find(descriptors: Array) -> Array:
        unit = jnp.clip((descriptors - low) / (high - low), 0.0, 1.0)
        if points is not None:
            cell = jnp.argmin(jnp.square(unit[:, None] - points).sum(-1), -1)
        else:
            index = jnp.minimum((unit * counts).astype(jnp.int32), counts - 1)
            strides = np.cumprod([1, *layout.cells[:0:-1]])[::-1]
            cell = (index * jnp.asarray(strides, jnp.int32)).sum(-1)
        fits = jnp.isfinite(descriptors).all(-1)
        return jnp.where(fits, cell, NONE).astype(jnp.int32)

    return find, layout.centroids or int(np.prod(layout.cells))


def cells_of(config: Any) -> tuple[Cells, int]:
    """Return the function from descriptors to cells that `config` describes, and the number of
    cells. Raises `UserError` unless `low` has one number for each descriptor."""
    if len(config.descriptor) != len(config.low):
        raise UserError(
            f"low is {config.low}; it needs a number for each of descriptor={config.descriptor}."
        )
    return cells(Layout(config.low, config.high, config.cells, config.centroids))


def cvt(centroids: int, size: int, rounds: int = 50) -> np.ndarray:
    """Return the centers [centroids, size] of a centroidal Voronoi tessellation of the unit cube,
    always the same (Vassiliades, Chatzilygeroudis and Mouret, 2018): k-means on uniform samples."""
    generator = np.random.default_rng(0)
    samples = generator.random((25 * centroids, size))
    centers = samples[:centroids].copy()
    for _ in range(rounds):
        distance = np.square(samples).sum(1)[:, None] - 2 * samples @ centers.T
        nearest = (distance + np.square(centers).sum(1)).argmin(1)
        counts = np.bincount(nearest, minlength=centroids)
        sums = np.stack([np.bincount(nearest, s, centroids) for s in samples.T], 1)
        centers = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
    return centers.astype(np.float32)


# ------------------------------------------------------------------------------- additions


def winners(cell: Array, fitness: Array, count: int) -> Array:
    """Return the mask, bool [P], of those of P candidates that are the best of their `cell` [P]: at
    most one for each of `count` cells, the first of equals; none without a cell or with a fitness
    [P] that is not finite."""
    valid = jnp.isfinite(fitness) & (cell != NONE)
    place = jnp.where(valid, cell, count)  # out of bounds: dropped
    best = jnp.full(count, -jnp.inf).at[place].max(fitness, mode="drop")
    among = valid & (fitness == best[cell])
    index = jnp.arange(cell.shape[0])
    place = jnp.where(among, cell, count)
    first = jnp.full(count, cell.shape[0]).at[place].min(index, mode="drop")
    return among & (first[cell] == index)


def add(
    archive: Archive, cell: Array, genotypes: Array, fitness: Array, descriptors: Array
) -> tuple[Archive, Array]:
    """Offer P candidates ([P], [P, D], [P], [P, K]) to the archive. A candidate must be strictly
    better than the current elite of its cell.

    Returns the archive, and the mask of the candidates that became elites, bool [P].
    """
    count = archive.fitness.shape[0]
    enters = winners(cell, fitness, count) & (fitness > archive.fitness[cell])
    place = jnp.where(enters, cell, count)
    put = lambda old, new: old.at[place].set(new, mode="drop")
    archive = Archive(
        put(archive.genotypes, genotypes),
        put(archive.fitness, fitness),
        put(archive.descriptors, descriptors),
    )
    return archive, enters


def anneal(thresholds: Array, cell: Array, fitness: Array, rate: Array) -> tuple[Array, Array]:
    """Update the thresholds of the soft archive of CMA-MAE (Fontaine and Nikolaidis, 2023,
    arXiv:2205.10752): each cell has a threshold, [C], that an accepted candidate moves toward its
    fitness by `rate`; 1 makes it the elite's fitness, 0 leaves it unchanged. All P candidates are
    compared with the old thresholds; k candidates accepted into one cell move its threshold like k
    successive candidates of their mean fitness.

    Returns the thresholds, and the improvement [P] of each candidate, its fitness minus the
    threshold of its cell, which is accepted if positive; -inf for candidates without a cell.
    """
    count = thresholds.shape[0]
    valid = jnp.isfinite(fitness) & (cell != NONE)
    improvement = jnp.where(valid, fitness - thresholds[cell], -jnp.inf)
    accepted = improvement > 0
    place = jnp.where(accepted, cell, count)
    number = jnp.zeros(count).at[place].add(1.0, mode="drop")
    total = jnp.zeros(count).at[place].add(fitness, mode="drop")
    mean, share = total / jnp.maximum(number, 1), 1 - jnp.power(1 - rate, number)
    moved = losses.annealed_threshold(thresholds, mean, share)
    return jnp.where(number > 0, moved, thresholds), improvement


# ------------------------------------------------------------------------------- contents


def sample(archive: Archive, key: Key, n: int) -> Array:
    """Draw the cells, int32 [n], of elites uniformly; 0 while there is none."""
    ranks = jnp.cumsum(archive.has_elite)
    drawn = jax.random.randint(key, (n,), 0, jnp.maximum(ranks[-1], 1)) + 1
    return jnp.minimum(jnp.searchsorted(ranks, drawn), ranks.shape[0] - 1).astype(jnp.int32)


def best(archive: Archive) -> Array:
    """Return the genotype [D] of the fittest elite, the first of equals."""
    return archive.genotypes[jnp.argmax(archive.fitness)]


SCORES = {"coverage": "coverage", "qd_score": "QD-score"}  # of a quality-diversity search


def statistics(archive: Archive, floor: Array) -> dict[str, Any]:
    """Return the metrics `coverage`, the share of cells with an elite; `qd_score`, the sum of the
    elites' fitness above `floor`; and `best_elite`. A row of several steps holds the maximum of
    each, as all only grow (unless an elite is below the floor)."""
    return {
        "coverage": m.Maximum(archive.has_elite.mean(dtype=jnp.float32)),
        "qd_score": m.Maximum(qd_score(archive, floor)),
        "best_elite": m.Maximum(archive.fitness.max()),
    }


def qd_score(archive: Archive, floor: Array | float) -> Array:
    """Return the sum over the elites of fitness - floor."""
    return jnp.where(archive.has_elite, archive.fitness - floor, 0.0).sum()
