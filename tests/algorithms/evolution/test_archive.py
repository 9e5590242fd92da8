"""Archives against loops: ties, NaN, and soft thresholds."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.evolution.shared import archive as archives
from jaxrl.algorithms.evolution.shared import novelty
from jaxrl.core import random
from jaxrl.core.errors import UserError


def individual(i):
    """Return a genotype and a descriptor that identify individual `i`."""
    return np.float32([i, 10 * i, -i]), np.float32([i / 100, 1 - i / 100])


def individuals(numbers):
    genotypes, descriptors = zip(*(individual(i) for i in numbers), strict=True)
    return jnp.stack(genotypes), jnp.stack(descriptors)


def offer(archive, cells, fitness, numbers):
    genotypes, descriptors = individuals(numbers)
    return archives.add(archive, jnp.int32(cells), genotypes, jnp.float32(fitness), descriptors)


def assert_elite(archive, cell, number, fitness):
    """Check that all three parts of an elite are those of one individual."""
    genotype, descriptor = individual(number)
    np.testing.assert_array_equal(archive.genotypes[cell], genotype)
    np.testing.assert_array_equal(archive.descriptors[cell], descriptor)
    assert archive.fitness[cell] == np.float32(fitness)


def test_two_candidates_for_one_cell():
    archive, entered = offer(archives.empty(4, 3, 2), [2, 2, 0], [1.0, 5.0, 3.0], [1, 2, 3])
    assert_elite(archive, 2, 2, 5.0)
    assert_elite(archive, 0, 3, 3.0)
    np.testing.assert_array_equal(entered, [False, True, True])
    np.testing.assert_array_equal(archive.has_elite, [True, False, True, False])


def test_the_first_of_equal_candidates_wins():
    for _ in range(3):
        archive, entered = offer(archives.empty(4, 3, 2), [1, 1, 1], [5.0, 5.0, 5.0], [7, 8, 9])
        assert_elite(archive, 1, 7, 5.0)
        np.testing.assert_array_equal(entered, [True, False, False])


def test_only_candidates_better_than_the_elite_enter():
    archive, _ = offer(archives.empty(4, 3, 2), [1], [5.0], [1])
    archive, entered = offer(archive, [1, 1], [5.0, 4.0], [2, 3])
    assert_elite(archive, 1, 1, 5.0)
    assert not entered.any()
    archive, entered = offer(archive, [1, 1], [5.0, 6.0], [4, 5])
    assert_elite(archive, 1, 5, 6.0)
    np.testing.assert_array_equal(entered, [False, True])


def test_candidates_that_are_not_finite_neither_enter_nor_hide_another():
    archive, entered = offer(
        archives.empty(4, 3, 2), [1, 1, 1, 3, archives.NONE], [np.nan, 2.0, np.inf, -np.inf, 9.0],
        [1, 2, 3, 4, 5],
    )  # fmt: skip
    assert_elite(archive, 1, 2, 2.0)
    np.testing.assert_array_equal(entered, [False, True, False, False, False])
    assert archive.has_elite.sum() == 1  # NONE did not index the last cell
    again, entered = offer(archive, [1], [np.nan], [6])
    assert_elite(again, 1, 2, 2.0)


def test_random_batches_agree_with_a_loop():
    generator = np.random.default_rng(0)
    archive, elites = archives.empty(5, 3, 2), {}
    for batch in range(6):
        cells = generator.integers(-1, 5, 12)
        fitness = generator.integers(0, 4, 12).astype(float)  # many ties
        fitness[generator.random(12) < 0.2] = np.nan
        numbers = batch * 12 + np.arange(12)
        best = {}
        for c, f, i in zip(cells, fitness, numbers, strict=True):
            if c >= 0 and np.isfinite(f) and f > best.get(c, (-np.inf,))[0]:
                best[c] = (f, i)
        for c, (f, i) in best.items():
            if f > elites.get(c, (-np.inf,))[0]:
                elites[c] = (f, i)
        archive, _ = offer(archive, cells, fitness, numbers)
        for c, (f, i) in elites.items():
            assert_elite(archive, c, i, f)
        np.testing.assert_array_equal(np.flatnonzero(archive.has_elite), sorted(elites))
    assert archives.qd_score(archive, -1.0) == sum(f + 1 for f, _ in elites.values())


def test_thresholds_move_as_by_successive_candidates():
    thresholds = jnp.float32([0.0, 1.0, 2.0])
    cell = jnp.int32([0, 0, 1, 2, archives.NONE, 0])
    fitness = jnp.float32([4.0, 4.0, 0.5, np.nan, 9.0, -1.0])
    new, improvement = archives.anneal(thresholds, cell, fitness, jnp.float32(0.25))
    # 0 -> 0 + (4 - 0) / 4 = 1 -> 1 + (4 - 1) / 4 = 1.75; the others are not accepted.
    np.testing.assert_allclose(new, [1.75, 1.0, 2.0])
    np.testing.assert_allclose(improvement, [4.0, 4.0, -0.5, -np.inf, -np.inf, -1.0])
    hard, _ = archives.anneal(thresholds, cell[:1], fitness[:1], jnp.float32(1.0))
    np.testing.assert_allclose(hard, [4.0, 1.0, 2.0])
    never, _ = archives.anneal(thresholds, cell[:1], fitness[:1], jnp.float32(0.0))
    np.testing.assert_array_equal(never, thresholds)


def test_cells_of_a_grid_and_of_points():
    find, count = archives.cells(archives.Layout((0.0, -1.0), (1.0, 1.0), (2, 3)))
    points = [[0.2, -0.9], [0.9, 0.0], [1.0, 1.0], [-5.0, 7.0], [np.nan, 0.0], [0.5, np.inf]]
    np.testing.assert_array_equal(find(jnp.float32(points)), [0, 4, 5, 2, -1, -1])
    assert count == 6
    find, count = archives.cells(archives.Layout((0.0, 0.0), (2.0, 2.0), (), 9))
    centers = 2 * archives.cvt(9, 2)
    np.testing.assert_array_equal(find(jnp.asarray(centers)), np.arange(9))
    assert count == 9
    for wrong in (
        archives.Layout((0.0,), (1.0, 1.0), (2, 3)),
        archives.Layout((1.0,), (1.0,), (2,)),
        archives.Layout((0.0,), (1.0,), (0,)),
    ):
        with pytest.raises(UserError):
            archives.cells(wrong)


def test_elites_are_sampled_uniformly():
    archive, _ = offer(archives.empty(8, 3, 2), [1, 4, 7], [1.0, 2.0, 0.0], [1, 2, 3])
    drawn = np.asarray(archives.sample(archive, random.key(0), 3000))
    cells, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(cells, [1, 4, 7])
    assert counts.min() > 900
    np.testing.assert_array_equal(archives.best(archive), individual(2)[0])


def test_novelty_is_the_mean_distance_to_others_and_memory():
    memory = novelty.remember(novelty.empty(4, 1), jnp.float32([[10.0]]), random.key(0), 1.0)
    seen = jnp.float32([[0.0], [1.0], [3.0], [np.nan]])
    value = novelty.novelty(seen, memory, 2)
    # 0: 1 and 3; 1: 1 and 2; 3: 2 and 3.
    np.testing.assert_allclose(value, [2.0, 1.5, 2.5, -np.inf])
    np.testing.assert_allclose(novelty.novelty(seen, memory, 9)[:3], [14 / 3, 4.0, 4.0])
    full = novelty.remember(memory, jnp.arange(4.0)[:, None], random.key(0), 1.0)
    np.testing.assert_array_equal(full.descriptors[:, 0], [3, 0, 1, 2])  # the oldest went
    none = novelty.remember(memory, seen, random.key(0), 0.0)
    np.testing.assert_array_equal(none.descriptors, memory.descriptors)


def test_an_archive_without_descriptors_says_what_to_set():
    with pytest.raises(UserError, match=r"`descriptor` to measures of an episode, such as \[obs"):
        archives.cells(archives.Layout((), (), ()))
