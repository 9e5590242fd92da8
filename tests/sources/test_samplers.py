"""Draws by priority from masses given by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.sources import samplers


@pytest.mark.parametrize(
    ("rows", "columns", "oldest", "drawable"), [(10, 3, 7, 5), (64, 1, 0, 64), (1, 5, 0, 1)]
)
def test_stratified_draws_are_as_many_as_their_share(rows, columns, oldest, drawable):
    """Of n strata, an item of probability p covers n p: it is drawn so often, but for its ends."""
    n = 5000
    mass = np.random.default_rng(0).lognormal(0, 3, (rows, columns)).astype(np.float32)
    state = samplers.Masses(jnp.asarray(mass), jnp.asarray(mass.sum(1)), jnp.float32(1))
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
    """Nothing without mass is reached, wherever the place falls."""
    mass = jnp.asarray([[0.0, 1e-8, 1.0, 1e-8, 0.0]])
    for place in (-1.0, 0.0, 1.0, jnp.nextafter(mass.sum(), 2.0), 5.0):
        index, left = samplers._reached(mass, jnp.asarray([place]))
        assert mass[0, index[0]] > 0 and left[0] >= 0
