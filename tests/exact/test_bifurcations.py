"""Exponents of linear maps and of fixed points in closed form and by SVD, their gradient by finite
differences, and branches between two wells and in the repeated prisoner's dilemma."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.exact import bifurcations, repeated

GAME = functools.partial(repeated.dilemma_and_pennies, discount=0.9)


def game_step(weight, rate=1.0):
    return lambda x: repeated.ascend(functools.partial(GAME, weight=weight), x, rate)


def singular_values(update, start, steps):
    """Return those of the Jacobian of all updates, which is formed whole."""
    whole = jax.jacfwd(lambda x: bifurcations.iterate(update, x, steps))(start)
    return np.linalg.svd(np.asarray(whole, np.float64), compute_uv=False)


def test_exponents_of_a_linear_map_are_singular_values_of_its_power():
    matrix = jax.random.normal(random.key(0), (4, 4)) / 2
    found = bifurcations.measure_stretch(
        lambda x: matrix @ x, jnp.ones(4), 3, random.key(1), number=2
    )
    power = np.linalg.matrix_power(np.asarray(matrix, np.float64), 3)
    np.testing.assert_allclose(
        found.exponents, np.log(np.linalg.svd(power, compute_uv=False)[:2]) / 3, rtol=1e-4
    )
    stretched = np.linalg.norm(found.directions @ power.T, axis=1)
    np.testing.assert_allclose(stretched, np.exp(3 * np.asarray(found.exponents)), rtol=1e-4)
    np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(2), atol=1e-5)


def test_exponents_of_gradient_descent_of_a_quadratic_are_log_factors_of_its_eigenvalues():
    curvature = np.array([-0.5, 2.0, 0.1, 8.0], np.float32)  # -> factors 1.1, 0.6, 0.98, -0.6

    def step(x):  # parameters of two parts
        flat = jnp.concatenate([x["a"], x["b"]])
        flat = flat - 0.2 * curvature * flat
        return {"a": flat[:1], "b": flat[1:]}

    start = {"a": jnp.ones(1), "b": jnp.ones(3)}
    found = bifurcations.measure_stretch(step, start, 2000, random.key(0), number=2, iterations=2)
    np.testing.assert_allclose(found.exponents, np.log([1.1, 0.98]), atol=1e-5)  # 1.1^2000 is inf
    np.testing.assert_allclose(abs(found.directions), np.eye(4)[[0, 2]], atol=1e-5)


@pytest.mark.parametrize("steps", [1, 50])
def test_exponents_at_the_equilibrium_of_matching_pennies(steps):
    """A step turns differences there by x + a y / 4 and y - a x / 4, of length sqrt(1 + a^2/16)."""
    found = bifurcations.measure_stretch(
        game_step(weight=1.0, rate=2.0), jnp.zeros(2), steps, random.key(0), number=2
    )
    np.testing.assert_allclose(found.exponents, np.log(1 + 4 / 16) / 2, rtol=1e-4)


def test_exponents_along_a_path_are_those_of_the_whole_jacobian():
    update, start = game_step(0.25), jnp.array([0.3, -0.4])
    found = bifurcations.measure_stretch(update, start, 20, random.key(0), number=2)
    expected = np.log(singular_values(update, start, 20)) / 20
    np.testing.assert_allclose(found.exponents, expected, atol=2e-5)


@pytest.mark.parametrize("objective", ["least", "sum"])
def test_a_step_of_the_search_follows_the_gradient_of_the_exponents(objective):
    update = lambda x: jnp.stack([
        1.5 * jnp.sin(x[0]) + 0.2 * x[1] ** 2, 0.4 * jnp.tanh(x[1]) + 0.1 * x[0]
    ])  # fmt: skip
    start, steps = jnp.array([0.1, 0.5]), 3
    with jax.enable_x64():
        start = jnp.asarray(start, float)
        found = bifurcations.seek_bifurcation(
            update, start, steps, random.key(0),
            searches=1, rate=0.01, number=2, objective=objective,
        )  # fmt: skip

        def objective_of(x):
            exponents = np.log(singular_values(update, x, steps)) / steps
            return exponents[-1] if objective == "least" else exponents.sum()

        gradient = np.array([
            (objective_of(start + d) - objective_of(start - d)) / 2e-5 for d in 1e-5 * jnp.eye(2)
        ])  # fmt: skip
        moved = np.asarray(found.start - start)
    np.testing.assert_allclose(moved, 0.01 * gradient / np.linalg.norm(gradient), atol=1e-6)


def double_well(x):
    """A step of descent of (x^2 - 1)^2 / 4 in the first number, and of y^2 / 2 in the second."""
    return x + 0.1 * jnp.stack([x[0] - x[0] ** 3, -x[1]])


@pytest.mark.parametrize("start", [0.4, -0.3])
def test_branches_beside_a_bifurcation_end_in_both_wells(start):
    begin = jnp.array([start, 1.0])
    found = bifurcations.generalized_ridge_rider(
        double_well, begin, random.key(0), lambda x: x[0],
        steps=20, searches=100, rate=0.02, size=0.1, updates=200,
    )  # fmt: skip
    assert abs(found.search.start[0]) < 0.02
    np.testing.assert_allclose(found.ends[:, 0], [1, -1], atol=1e-3)  # the best first
    np.testing.assert_allclose(found.scores, found.ends[:, 0])
    assert np.all(found.search.exponents[-1] > found.search.exponents[0])
    stretch = bifurcations.measure_stretch(double_well, begin, 20, random.key(0))
    near = bifurcations.branch(begin, stretch.directions, 0.1)
    ends = jax.vmap(lambda x: bifurcations.iterate(double_well, x, 200))(near)
    np.testing.assert_allclose(ends[:, 0], np.sign(start), atol=1e-3)  # without the search


def test_the_saddle_between_the_wells_is_found_with_its_ridge():
    saddle = bifurcations.seek_saddle(double_well, jnp.array([0.3, 0.5]), searches=300, rate=0.02)
    np.testing.assert_allclose(saddle, [0, 0], atol=0.01)
    ridge = bifurcations.measure_stretch(double_well, saddle, 1, random.key(0))
    np.testing.assert_allclose(abs(ridge.directions), [[1, 0]], atol=1e-3)
    np.testing.assert_allclose(ridge.exponents, np.log(1.1), atol=1e-3)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"objective": "most"}, "objective"),
        ({"searches": 0}, "at least 1"),
        ({"number": 3}, "2 parameters have 1 to 2"),
    ],
)
def test_other_searches_are_refused(wrong, words):
    settings = {"searches": 1, "rate": 0.1} | wrong
    with pytest.raises(UserError, match=words):
        bifurcations.seek_bifurcation(double_well, jnp.ones(2), 2, random.key(0), **settings)
