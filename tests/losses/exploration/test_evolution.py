import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

MASK = np.array([True, True, False, True, True, False])


def samples(rng):
    return {"fitness": rng.normal(size=(2, 6)), "noise": rng.normal(size=(2, 6, 3)), "scale": 0.1}


def cells(rng):
    return {"objective": rng.normal(size=5), "threshold": rng.normal(size=5)}


CASES = [
    Case(
        losses.centered_ranks,
        lambda rng: {"fitness": rng.permutation(np.arange(12.0)).reshape(2, 6), "mask": MASK},
        stopped=("fitness",),
        extremes=lambda rng: [
            {"fitness": np.where(MASK, 1e30, np.nan) * np.ones((2, 1))},
            {"mask": np.zeros(6, bool)},
            {"fitness": np.array([[np.inf, -np.inf, 0, 1, 2, 3]] * 2)},
            {"fitness": np.ones((2, 1)), "mask": None},
            {"fitness": np.ones((2, 0)), "mask": None},
        ],
    ),
    Case(losses.es_gradient, samples, stopped=("fitness", "noise")),
    Case(
        losses.antithetic_es_gradient,
        lambda rng: {**samples(rng), "mirrored_fitness": rng.normal(size=(2, 6))},
        stopped=("fitness", "mirrored_fitness", "noise"),
    ),
    Case(
        losses.archive_improvement,
        lambda rng: {**cells(rng), "occupied": np.array([True, False, True, True, False])},
        gradient=("objective",),
        stopped=("threshold",),
        extremes=lambda rng: [{"threshold": np.full(5, np.nan), "occupied": np.zeros(5, bool)}],
    ),
    Case(
        losses.annealed_threshold,
        lambda rng: {**cells(rng), "rate": 0.3},
        stopped=("objective", "threshold"),
        extremes=lambda rng: [{"threshold": np.full(5, -1e6)}],
    ),
]
test_contract = contract(CASES)
ranks = jax.jit(losses.centered_ranks)


@given(st.lists(st.integers(-3, 3), min_size=6, max_size=6))
def test_ranks_equal_scipys(fitness):
    expected = (scipy.stats.rankdata(fitness) - 1) / 5 - 0.5
    np.testing.assert_allclose(ranks(jnp.float32(fitness)), expected, atol=1e-6)


@given(st.lists(st.integers(-3, 3), min_size=6, max_size=6))
def test_masked_ranks_are_those_of_the_smaller_population(fitness):
    expected = (scipy.stats.rankdata(np.array(fitness)[MASK]) - 1) / 3 - 0.5
    for hidden in (jnp.nan, 9.0):
        ours = ranks(jnp.where(MASK, jnp.float32(fitness), hidden), MASK)
        np.testing.assert_allclose(ours[MASK], expected, atol=1e-6)
        assert (ours[~MASK] == 0).all()


# Whitened directions with both signs: second moments are the identity, odd moments vanish.
DIRECTIONS = np.sqrt(3) * np.r_[np.eye(3), -np.eye(3)]
CURVATURE = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.5], [0.0, 0.5, 3.0]])
SLOPE = np.array([1.0, -2.0, 0.5])
THETA = np.array([0.4, -0.3, 0.8])


def fitness(theta):
    return theta @ SLOPE - 0.5 * np.einsum("...i,ij,...j->...", theta, CURVATURE, theta)


EXACT = SLOPE - CURVATURE @ THETA


def test_es_gradients_are_exact_for_a_quadratic():
    f = fitness(THETA + 0.1 * DIRECTIONS)
    ours = losses.es_gradient(jnp.float32(f), jnp.float32(DIRECTIONS), 0.1)
    np.testing.assert_allclose(ours, EXACT, rtol=1e-3)
    half = DIRECTIONS[:3]
    mirrored = losses.antithetic_es_gradient(
        *map(jnp.float32, (fitness(THETA + 0.1 * half), fitness(THETA - 0.1 * half), half)), 0.1
    )
    np.testing.assert_allclose(mirrored, EXACT, rtol=1e-3)
    pairs = losses.antithetic_es_gradient(
        *map(jnp.float32, (f, fitness(THETA - 0.1 * DIRECTIONS), DIRECTIONS)), 0.1
    )
    np.testing.assert_allclose(pairs, ours, rtol=1e-3)


def test_es_gradient_of_gaussian_noise_is_unbiased_and_mirroring_cuts_its_variance():
    noise = np.random.default_rng(0).normal(size=(20000, 3))
    up, down = fitness(THETA + 0.1 * noise) + 5, fitness(THETA - 0.1 * noise) + 5
    arrays = [jnp.float32(x) for x in (up, down, noise)]
    mirrored = losses.antithetic_es_gradient(*arrays, 0.1)
    np.testing.assert_allclose(mirrored, EXACT, atol=0.05)
    single = np.std(up[:, None] * noise, axis=0)
    assert (single > 5 * np.std(0.5 * (up - down)[:, None] * noise, axis=0)).all()


def test_evolution_by_ranks_climbs():
    rng = np.random.default_rng(0)
    theta = np.zeros(3)
    for _ in range(150):
        noise = rng.normal(size=(20, 3))
        values = np.r_[fitness(theta + 0.1 * noise), fitness(theta - 0.1 * noise)]
        rank = np.array(ranks(jnp.float32(values)))
        direction = losses.antithetic_es_gradient(
            *map(jnp.float32, (rank[:20], rank[20:], noise)), 0.1
        )
        theta = theta + 0.02 * np.array(direction)
    best = np.linalg.solve(CURVATURE, SLOPE)
    assert fitness(best) - fitness(theta) < 0.02 * (fitness(best) - fitness(np.zeros(3)))


def test_archive_improvement():
    ours = losses.archive_improvement(
        jnp.array([3.0, 3.0, 1.0]), jnp.array([2.0, 2.0, 2.0]), jnp.array([True, False, True]), -1.0
    )
    np.testing.assert_allclose(ours, [1, 4, -1])


def test_annealed_thresholds_from_map_elites_to_plain_search():
    """The paper's rule: t = (1 - a) t + a f for each accepted f."""
    for rate in (0.0, 0.3, 1.0):
        threshold, expected = jnp.float32(-2.0), -2.0
        for objective in (1.0, 0.0, -3.0, 2.0, 1.5):
            threshold = losses.annealed_threshold(threshold, jnp.float32(objective), rate)
            if objective > expected:
                expected = (1 - rate) * expected + rate * objective
        np.testing.assert_allclose(threshold, expected, rtol=1e-5)
