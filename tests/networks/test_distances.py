"""Heads of distances: triangle inequality, zero to itself, symmetry, and a bound."""

import jax
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.networks.distances import HEADS, Distance

POINTS = jax.random.normal(random.key(1), (3, 64, 4))


@pytest.mark.parametrize("kind", HEADS)
def test_distances_are_quasimetrics(kind):
    network = Distance(kind, (16,), components=3, size=4)

    @jax.jit
    def run(key):
        params = network.init(key, POINTS[0], POINTS[1])
        d = lambda i, j: network.apply(params, POINTS[i], POINTS[j])
        pairs = ((0, 2), (0, 1), (1, 2), (0, 0), (2, 0))
        return [d(i, j) for i, j in pairs], jax.nn.softplus(params["params"].get("weight", 0.0))

    (whole, first, second, still, back), weight = run(random.key(0))
    assert (whole <= first + second + 1e-5).all() and (whole >= 0).all() and (whole > 0).any()
    np.testing.assert_allclose(still, 0.0, atol=1e-6)
    assert np.allclose(whole, back, atol=1e-5) == (kind == "euclidean")
    if kind == "pqe":
        assert whole.max() <= weight.sum()
