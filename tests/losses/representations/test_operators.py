import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

MASK = np.array([True] * 6 + [False] * 2)


def batch(rng, *names):
    return {name: rng.normal(size=(2, 8, 3)) for name in names}


def with_garbage(rng, *names):
    """Extremes: NaN where masked, all masked, all equal."""
    hidden = {k: np.where(MASK[:, None], rng.normal(size=(2, 8, 3)), np.nan) for k in names}
    nothing = {k: np.full((2, 8, 3), np.nan) for k in names}
    return [
        hidden,
        {**nothing, "mask": np.zeros(8, bool)},
        {k: np.ones((2, 8, 3)) for k in names},
    ]


def pairs(rng):
    x = rng.normal(size=(2, 8, 3))
    return {"features": x, "next_features": 0.5 * x + rng.normal(size=x.shape), "mask": MASK}


CASES = [
    Case(
        losses.operator_projection,
        lambda rng: {**pairs(rng), "ridge": 1e-3},
        gradient=("features", "next_features"),
        extremes=lambda rng: with_garbage(rng, "features", "next_features"),
    ),
    Case(
        losses.relaxed_operator_projection,
        pairs,
        gradient=("features", "next_features"),
        extremes=lambda rng: with_garbage(rng, "features", "next_features"),
    ),
    Case(
        losses.metric_distortion,
        lambda rng: {**batch(rng, "features"), "mask": MASK},
        gradient=("features",),
        extremes=lambda rng: with_garbage(rng, "features"),
    ),
    Case(
        losses.task_vector,
        lambda rng: {**batch(rng, "features"), "reward": rng.normal(size=(2, 8)), "mask": MASK},
        gradient=("features", "reward"),
        extremes=lambda rng: [*with_garbage(rng, "features"), {"features": np.zeros((2, 8, 3))}],
    ),
    *(
        Case(
            function,
            lambda rng: {**batch(rng, "latent"), "mask": MASK},
            stopped=("latent",),
            extremes=lambda rng: with_garbage(rng, "latent"),
        )
        for function in (losses.latent_deviation, losses.effective_rank)
    ),
]
test_contract = contract(CASES)

# A reversible random walk on four states with a uniform stationary distribution, in sixteenths.
COUNTS = np.array([[3, 1, 0, 0], [1, 2, 1, 0], [0, 1, 2, 1], [0, 0, 1, 3]])
PAIRS = np.array([(i, j) for i in range(4) for j in range(4) for _ in range(COUNTS[i, j])])
TRANSITION = COUNTS / COUNTS.sum(1, keepdims=True)
SINGULAR = np.sort(np.linalg.svd(TRANSITION)[1])[::-1]  # the stationary distribution is uniform


def tables(seed=0, size=4):
    return np.random.default_rng(seed).normal(size=(4, size))


def test_the_projection_of_all_functions_is_the_operators_spectrum():
    """One-hot features span everything: P's squared singular values after the first add up."""
    with jax.enable_x64(True):
        one_hot = jnp.eye(4)[:, 1:]  # with the constant, which is left out, these span everything
        x, y = one_hot[PAIRS[:, 0]], one_hot[PAIRS[:, 1]]
        ours = losses.operator_projection(x, y, ridge=1e-12)
        np.testing.assert_allclose(ours, -np.square(SINGULAR[1:]).sum(), atol=1e-6)
        mixed = losses.operator_projection(x @ tables(1, 3)[:3], y @ tables(2, 3)[:3], ridge=1e-12)
        np.testing.assert_allclose(mixed, ours, atol=1e-6)  # only the span matters


@pytest.mark.slow
def test_learned_features_find_the_leading_spectrum():
    """Gradient descent on two features of four states reaches the two largest singular values."""
    number = jnp.array(PAIRS)

    def loss(table, exact):
        x, y = table[number[:, 0]], table[number[:, 1]]
        fit = losses.operator_projection if exact else losses.relaxed_operator_projection
        spread = losses.metric_distortion(x) + losses.metric_distortion(y)
        return fit(x, y) + spread

    best = -np.square(SINGULAR[1:3]).sum()
    for exact in (True, False):

        @jax.jit
        def train(table, exact=exact):
            step = lambda table, size: (table - size * jax.grad(loss)(table, exact), None)
            return jax.lax.scan(step, table, jnp.linspace(0.1, 0.0, 1000))[0]

        learned = train(jnp.float32(tables(3, 2)))
        np.testing.assert_allclose(loss(learned, exact), best, atol=0.02)
        x, y = learned[number[:, 0]], learned[number[:, 1]]
        eigenvalues = np.linalg.eigvals(np.linalg.lstsq(x - x.mean(0), y - y.mean(0))[0])
        exact_ones = np.sort(np.linalg.eigvals(TRANSITION).real)
        nearest = abs(eigenvalues.real[:, None] - exact_ones).min(1)
        np.testing.assert_allclose(nearest, 0, atol=0.05)


def test_the_relaxed_score_bounds_the_exact_one():
    for seed in range(5):
        x, y = (tables(seed + k, 2)[PAIRS[:, k]] for k in (0, 1))
        exact = losses.operator_projection(jnp.float32(x), jnp.float32(y), ridge=0.0)
        assert losses.relaxed_operator_projection(jnp.float32(x), jnp.float32(y)) >= exact - 1e-5
        scaled = losses.relaxed_operator_projection(jnp.float32(3 * x), jnp.float32(0.5 * y))
        np.testing.assert_allclose(
            scaled, losses.relaxed_operator_projection(jnp.float32(x), jnp.float32(y)), rtol=1e-4
        )


def test_metric_distortion_is_least_for_white_features():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    white = (x - x.mean(0)) @ vectors / np.sqrt(values)
    value, gradient = jax.jit(jax.value_and_grad(losses.metric_distortion))(jnp.float32(white))
    np.testing.assert_allclose(value, 0, atol=1e-4)
    np.testing.assert_allclose(gradient, 0, atol=1e-4)
    C = np.cov(x.T, bias=True)
    expected = np.trace(C @ C - C) - np.linalg.slogdet(C)[1]
    np.testing.assert_allclose(losses.metric_distortion(jnp.float32(x)), expected, rtol=1e-3)


def test_task_vector_recovers_a_linear_reward():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(20, 3)), np.array([1.0, -2.0, 0.5])
    reward = x @ w
    reward[15:] = np.nan
    mask = np.arange(20) < 15
    ours = losses.task_vector(jnp.float32(x), jnp.float32(reward), mask)
    np.testing.assert_allclose(ours, w, atol=1e-4)
    noisy = rng.normal(size=20)
    ridge = losses.task_vector(jnp.float32(x), jnp.float32(noisy), ridge=0.5)
    expected = np.linalg.solve(x.T @ x + 20 * 0.5 * np.eye(3), x.T @ noisy)
    np.testing.assert_allclose(ridge, expected, rtol=1e-4)


@pytest.mark.slow
def test_collapse_diagnostics():
    rng, rank = np.random.default_rng(0), jax.jit(losses.effective_rank)
    x = rng.normal(size=(400, 4)) * [1.0, 1.0, 0.0, 0.0] + 7
    np.testing.assert_allclose(rank(jnp.float32(x)), 2, rtol=1e-2)
    np.testing.assert_allclose(losses.latent_deviation(jnp.float32(x)), x.std(0).mean(), rtol=1e-4)
    line = np.outer(rng.normal(size=9), [1.0, 2.0])
    np.testing.assert_allclose(rank(jnp.float32(line)), 1, rtol=1e-4)
    assert losses.effective_rank(jnp.ones((5, 3))) == 0
    singular = np.array([3.0, 1.0])
    p = singular / 4
    basis = np.linalg.qr(np.c_[np.ones(6), rng.normal(size=(6, 2))])[0][:, 1:]
    ours = rank(jnp.float32(basis * singular))
    np.testing.assert_allclose(ours, np.exp(-(p * np.log(p)).sum()), rtol=1e-4)
    mask = np.arange(400) < 100
    masked = np.where(mask[:, None], x, np.nan)
    for figure in (rank, jax.jit(losses.latent_deviation)):
        ours = figure(jnp.float32(masked), mask)
        np.testing.assert_allclose(ours, figure(jnp.float32(x[:100])), rtol=1e-4)
