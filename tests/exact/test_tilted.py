"""Tilted laws on a grid against a mixture's closed form, and distances of samples from them."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.exact.tilted import has_density, tilted_law, total_variation

BETA, SPREAD, RADIUS = 0.5, 0.08, 0.6


def tilted_mixture():
    """Weights and centers of p(x) exp(x / beta): each Gaussian moves, and weighs more at the
    right."""
    angle = 2 * np.pi * np.arange(8) / 8
    centers = RADIUS * np.stack([np.cos(angle), np.sin(angle)], -1)
    weight = np.exp(centers[:, 0] / BETA)
    return weight / weight.sum(), centers + np.array([SPREAD**2 / BETA, 0])


def draw(n):
    weight, centers = tilted_mixture()
    rng = np.random.default_rng(0)
    return centers[rng.choice(8, n, p=weight)] + SPREAD * rng.normal(size=(n, 2))


def test_the_law_is_that_of_the_closed_form():
    law = jax.jit(lambda beta: tilted_law(envs.make("mixture"), beta))(BETA)
    weight, centers = tilted_mixture()
    np.testing.assert_allclose(law.probability.sum(), 1, rtol=1e-4)
    mean = (law.probability[:, None] * law.points).sum(0)
    np.testing.assert_allclose(mean, weight @ centers, atol=1e-3)
    np.testing.assert_allclose(law.expected_reward, mean[0], atol=1e-4)
    plain = tilted_law(envs.make("mixture"), np.inf)
    np.testing.assert_allclose(plain.expected_reward, 0, atol=1e-4)
    samples = draw(20_000)
    assert total_variation(law, samples) < 0.03 < 0.3 < total_variation(plain, samples)


def test_only_densities_have_laws():
    assert not has_density(envs.make("two_sides"))
    with pytest.raises(UserError, match="'two_sides' has no known density"):
        tilted_law(envs.make("two_sides"), 1.0)
