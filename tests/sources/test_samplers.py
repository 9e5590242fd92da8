"""Draws by priority from given masses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.sources import samplers


@pytest.mark.parametrize(
    ("rows", "columns", "oldest", "drawable"),
    [
        (10, 3, 7, 5),
        (64, 1, 0, 64),
        (1, 5, 0, 1),
        (30, 2, 14, 29),  # the first and the last row lie in one block
        (127, 1, 77, 60),  # around the end of rows that do not fill the last block
        (127, 1, 40, 1),
    ],
)
def test_stratified_draws_are_in_proportion(rows, columns, oldest, drawable):
    """An item of probability p covers n p of n strata and is drawn as often, except at its ends."""
    n = 5000
    mass = np.random.default_rng(0).lognormal(0, 3, (rows, columns)).astype(np.float32)
    state = samplers.masses(jnp.asarray(mass))
    draw = jax.jit(samplers.proportional().draw, static_argnums=2)
    row, column, probability = draw(state, random.key(0), n, jnp.int32(oldest), jnp.int32(drawable))
    inside = (np.arange(rows) - oldest) % rows < drawable
    share = np.where(inside[:, None], mass, 0).astype(np.float64)
    share /= share.sum()
    counts = np.zeros((rows, columns))
    np.add.at(counts, (row, column), 1)
    assert np.abs(counts - n * share).max() < 2 + 1e-3 * n * share.max()
    assert (counts[share == 0] == 0).all()
    np.testing.assert_allclose(probability, share[row, column], rtol=1e-5)


def test_the_ends_of_rounding_are_never_drawn():
    """An item without mass is never found, whatever the place."""
    mass = jnp.asarray([[0.0, 1e-8, 1.0, 1e-8, 0.0]])
    for place in (-1.0, 0.0, 1.0, np.nextafter(float(mass.sum()), 2.0), 5.0):
        index, left = samplers._find(mass, jnp.asarray([place]))
        assert mass[0, index[0]] > 0 and left[0] >= 0


def test_sums_follow_new_items_and_new_priorities():
    """The sums are those of the masses, whatever has changed, even if a row has changed twice."""
    sampler = samplers.proportional(1.0)
    state, rng = sampler.init(29, 2), np.random.default_rng(0)
    for number in range(20):
        state = sampler.overwrite(state, jnp.int32(4 * number % 28), 4)
        row, column = jnp.asarray(rng.integers(0, 28, 9)), jnp.arange(9) % 2
        state = sampler.prioritize(state, row, column, jnp.asarray(rng.random(9)), sampler.hyper)
        anew = samplers.masses(state.mass)
        np.testing.assert_allclose(state.row_mass, anew.row_mass, rtol=1e-6)
        np.testing.assert_allclose(state.block_mass, anew.block_mass, rtol=1e-6)
