"""Lyapunov exponents of linear maps, and the two wells of a double well."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.exact import bifurcations


def test_exponents_of_a_linear_map_are_singular_values_of_its_power():
    matrix = jax.random.normal(random.key(0), (4, 4)) / 2
    found = bifurcations.measure_stretch(lambda x: matrix @ x, jnp.ones(4), 3, number=2)
    power = np.linalg.matrix_power(np.asarray(matrix, np.float64), 3)
    np.testing.assert_allclose(
        found.exponents, np.log(np.linalg.svd(power, compute_uv=False)[:2]) / 3, rtol=1e-4
    )
    stretched = np.linalg.norm(found.directions @ power.T, axis=1)
    np.testing.assert_allclose(stretched, np.exp(3 * np.asarray(found.exponents)), rtol=1e-4)


def double_well(x):
    """A step of descent of (x^2 - 1)^2 / 4 in the first number, and of y^2 / 2 in the second."""
    return x + 0.1 * jnp.stack([x[0] - x[0] ** 3, -x[1]])


@pytest.mark.parametrize("start", [0.4, -0.3])
def test_a_search_ends_between_the_wells_and_its_branches_in_both(start):
    begin = jnp.array([start, 1.0])
    ends = lambda x: jax.vmap(lambda x: bifurcations.iterate(double_well, x, 200))(x)
    found = bifurcations.seek_bifurcation(double_well, begin, 20, searches=100, rate=0.01)
    assert abs(found[0]) < 0.02
    wells = ends(bifurcations.branch(double_well, found, 20, size=0.1))
    np.testing.assert_allclose(sorted(wells[:, 0]), [-1, 1], atol=1e-3)
    near = ends(bifurcations.branch(double_well, begin, 20, size=0.1))
    np.testing.assert_allclose(near[:, 0], np.sign(start), atol=1e-3)  # without the search
