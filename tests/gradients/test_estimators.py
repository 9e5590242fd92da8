import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import gradients
from tests.losses.contract import Case, contract

SHAPE = (4, 5)
ZERO, TINY, HUGE = np.zeros(SHAPE), np.full(SHAPE, 1e-30), np.full(SHAPE, 1e30)
ROOT = np.random.default_rng(7).normal(size=(5, 5)) / 3
HESSIAN = np.eye(5) + ROOT @ ROOT.T


def hessian_vector_product(vector):
    return vector @ jnp.asarray(HESSIAN, vector.dtype)


CASES = [
    Case(
        gradients.scale_gradient,
        lambda rng: {"x": rng.normal(size=SHAPE), "scale": rng.uniform(size=SHAPE)},
        surrogate=("x",),
        stopped=("scale",),
        extremes=lambda rng: [{"x": HUGE}],
        diverging=lambda rng: [{"x": np.full(SHAPE, -np.inf)}],
    ),
    Case(
        gradients.straight_through,
        lambda rng: {"value": rng.normal(size=SHAPE), "surrogate": rng.normal(size=SHAPE)},
        surrogate=("surrogate",),
        stopped=("value",),
        extremes=lambda rng: [{"surrogate": HUGE}, {"surrogate": np.full(SHAPE, -np.inf)}],
    ),
    Case(
        gradients.recursive_momentum,
        lambda rng: {
            **{k: rng.normal(size=SHAPE) for k in ("momentum", "gradient", "old_gradient")},
            "rate": np.float64(0.2),
            "weight": rng.uniform(0.5, 1.5, 4),
        },
        stopped=("momentum", "gradient", "old_gradient", "rate", "weight"),
    ),
    Case(
        gradients.neumann_inverse,
        lambda rng: {
            "hessian_vector_product": hessian_vector_product,
            "vector": rng.normal(size=SHAPE),
            "step": 0.25,
            "terms": 5,
        },
        gradient=("vector",),
        extremes=lambda rng: [{"vector": ZERO}, {"terms": 0}],
    ),
    Case(
        gradients.reptile_gradient,
        lambda rng: {"parameter": rng.normal(size=SHAPE), "adapted": rng.normal(size=(*SHAPE, 3))},
        stopped=("parameter", "adapted"),
    ),
    Case(
        gradients.gumbel_softmax,
        lambda rng: {
            "logits": rng.normal(size=(3, 4)),
            "gumbel": rng.gumbel(size=(3, 4)),
            "temperature": 0.5,
        },
        gradient=("logits",),
        stopped=("gumbel",),
        extremes=lambda rng: [
            {"logits": np.array([[0, -np.inf, 1, -np.inf]] * 3)},
            {"temperature": 1e-3},
        ],
    ),
]
test_contract = contract(CASES)


def test_scaled_gradients():
    x = jnp.float32([1.5, -1e10])
    assert (gradients.scale_gradient(x, 0.3) == x).all()
    gradient = jax.grad(lambda x: (gradients.scale_gradient(x, 0.3) ** 2).sum())(x)
    np.testing.assert_allclose(gradient, 0.3 * 2 * x, rtol=1e-6)


@pytest.mark.slow
def test_straight_through_is_exact_and_passes_the_surrogates_gradient():
    """The gradient is the loss's at the sample, through the softmax's Jacobian."""
    logits, weight = jnp.float32([0.3, -1.0, 0.7]), jnp.float32([1.0, 4.0, -2.0])
    draw = jnp.float32([0, 1, 0])
    through = lambda x: gradients.straight_through(draw, jax.nn.softmax(x))
    assert (through(logits) == draw).all()
    gradient = jax.grad(lambda x: (weight * through(x) ** 2).sum())(logits)
    slope = jax.jacobian(jax.nn.softmax)(logits).T @ (2 * weight * draw)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5)
    value = jnp.bfloat16([0.1, 1e-3])
    assert (gradients.straight_through(value, jnp.bfloat16([3.0, 7.0])) == value).all()


def test_recursive_momentum_follows_a_moving_gradient_with_less_variance():
    """Estimates from gradients x + noise of a moving x are unbiased and closer than a sample."""
    rng = np.random.default_rng(0)
    x = np.cumsum(0.01 * rng.normal(size=(400, 1)), 0)
    noise = rng.normal(size=(400, 50))
    estimate = gradients.recursive_momentum
    step = jax.jit(lambda d, g, old: estimate(d[..., None], g, old, 0.05)[..., 0])
    d = jnp.float32(x[0] + noise[0])
    for t in range(1, 400):
        both = jnp.float32(x[t] + noise[t]), jnp.float32(x[t - 1] + noise[t])
        d = step(d, *(g[..., None] for g in both))
    error = np.array(d) - x[-1]
    # The stationary deviation of the noise is that of an average: sqrt(0.05 / 1.95) = 0.16.
    assert 0.1 < error.std() < 0.22 and abs(error.mean()) < 0.08


def test_recursive_momentum_weights_samples_of_the_new_policy():
    """Exact expectations over two arms lead from the old gradient to the new, for any rate."""
    with jax.enable_x64(True):
        reward, old, new = jnp.array([1.0, 3.0]), jnp.array([0.2, -0.1]), jnp.array([-0.3, 0.6])

        def samples(logits):
            return reward[:, None] * jax.jacobian(jax.nn.log_softmax)(logits)

        before, after = (jax.nn.softmax(x) @ samples(x) for x in (old, new))
        weight = jnp.exp(jax.nn.log_softmax(old) - jax.nn.log_softmax(new))
        each = gradients.recursive_momentum(before, samples(new), samples(old), 0.3, weight)
        np.testing.assert_allclose(jax.nn.softmax(new) @ each, after, rtol=1e-9)
        last = gradients.recursive_momentum(before, samples(new), samples(old), 1.0, weight)
        np.testing.assert_allclose(last, samples(new))


def test_neumann_inverse_converges_to_the_inverse():
    vector = np.random.default_rng(0).normal(size=5)
    exact = np.linalg.solve(HESSIAN, vector)
    solve = lambda terms: gradients.neumann_inverse(
        hessian_vector_product, jnp.float32(vector), 0.25, terms
    )
    np.testing.assert_allclose(solve(80), exact, rtol=1e-4)
    np.testing.assert_allclose(solve(1), 0.25 * vector, rtol=1e-5)
    matrix = np.eye(5) - 0.25 * HESSIAN
    two = 0.25 * (vector + matrix @ vector + matrix @ matrix @ vector)
    np.testing.assert_allclose(solve(3), two, rtol=1e-5)


def test_neumann_inverse_gives_the_gradient_through_an_inner_optimum():
    """Compare with finite differences of ridge regression's validation loss in the ridge."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, y = jnp.array(rng.normal(size=(8, 3))), jnp.array(rng.normal(size=8))
        held_x, held_y = jnp.array(rng.normal(size=(8, 3))), jnp.array(rng.normal(size=8))
        inner = lambda w, h: 0.5 * jnp.square(x @ w - y).mean() + 0.5 * h * jnp.square(w).sum()
        outer = lambda w: jnp.square(held_x @ w - held_y).mean()
        optimum = lambda h: jnp.linalg.solve(x.T @ x / 8 + h * jnp.eye(3), x.T @ y / 8)
        h = 0.3
        w = optimum(h)

        @jax.jit
        def implicit(h):
            product = lambda v: jax.jvp(lambda w: jax.grad(inner)(w, h), (w,), (v,))[1]
            v = gradients.neumann_inverse(product, jax.grad(outer)(w), 0.2, 300)
            return -jax.grad(lambda h: jax.grad(inner)(w, h) @ v)(h)

        ours, value = implicit(h), jax.jit(lambda h: outer(optimum(h)))
        theirs = (value(h + 1e-5) - value(h - 1e-5)) / 2e-5
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_reptile_and_soups():
    parameter, adapted = jnp.float32([1.0, 2.0]), jnp.float32([[0, 4], [2, 6]])
    gradient = gradients.reptile_gradient(parameter, adapted)
    np.testing.assert_allclose(parameter - 0.5 * gradient, [1.5, 3])  # halfway to the mean [2, 4]
    soup = gradients.parameter_soup(adapted, jnp.float32([1, 3]))
    np.testing.assert_allclose(soup, [3, 5])
    trees = {"w": adapted, "b": jnp.float32([1, 5])}
    both = jax.tree.map(lambda x: gradients.parameter_soup(x, jnp.ones(2)), trees)
    np.testing.assert_allclose(both["b"], 3)


def test_gumbel_softmax_approaches_an_exact_sample():
    rng = np.random.default_rng(0)
    logits, gumbel = jnp.float32([0.0, 1.0, -1.0]), jnp.float32(rng.gumbel(size=(4000, 3)))
    soft = gradients.gumbel_softmax(jnp.broadcast_to(logits, gumbel.shape), gumbel, 0.01)
    np.testing.assert_allclose(soft.mean(0), jax.nn.softmax(logits), atol=0.02)
    even = gradients.gumbel_softmax(logits, jnp.zeros(3), 1.0)
    np.testing.assert_allclose(even, jax.nn.softmax(logits), rtol=1e-6)
