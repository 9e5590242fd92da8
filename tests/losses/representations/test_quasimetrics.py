import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def two_points(rng, *names, shape=(5, 3)):
    return {name: rng.normal(size=shape) for name in names}


def same(shape):
    point = np.random.default_rng(5).normal(size=shape)
    return [{"x": point, "y": point}, {"x": np.zeros(shape), "y": np.zeros(shape)}]


CASES = [
    Case(
        losses.mrn,
        lambda rng: two_points(rng, "x", "y", "x_residual", "y_residual"),
        gradient=("x", "y", "x_residual", "y_residual"),
        extremes=lambda rng: [*same((5, 3)), {"x_residual": np.full((5, 3), 1e15)}],
    ),
    Case(
        losses.pqe,
        lambda rng: {
            **two_points(rng, "x", "y", shape=(5, 2, 3)),
            "weight": rng.uniform(0.5, 1.5, 2),
        },
        gradient=("x", "y", "weight"),
        extremes=lambda rng: [*same((5, 2, 3)), {"x": np.full((5, 2, 3), 1e15)}],
    ),
    Case(
        losses.interval_union,
        lambda rng: two_points(rng, "x", "y"),
        gradient=("x", "y"),
        extremes=lambda rng: [*same((5, 3)), {"y": np.full((5, 3), 1e15)}],
    ),
    Case(
        losses.iqe,
        lambda rng: {**two_points(rng, "x", "y", shape=(5, 2, 3)), "mix": np.float64(0.3)},
        gradient=("x", "y", "mix"),
        extremes=lambda rng: [*same((5, 2, 3)), {"y": np.full((5, 2, 3), 1e15)}],
    ),
    Case(
        losses.quasimetric_push,
        lambda rng: {"distance": rng.uniform(0, 30, 5), "offset": 15.0, "sharpness": 0.1},
        gradient=("distance",),
        extremes=lambda rng: [{"distance": np.full(5, 1e15)}, {"distance": np.zeros(5)}],
    ),
    Case(
        losses.quasimetric_constraint,
        lambda rng: {
            "distance": np.array([0.2, 1.5, 3.0]),
            "cost": np.ones(3),
            "multiplier": np.float64(0.7),
        },
        gradient=("distance",),
        surrogate=("multiplier",),
        stopped=("cost",),
        extremes=lambda rng: [{"distance": np.full(3, 1e6)}, {"distance": np.ones(3)}],
    ),
]
test_contract = contract(CASES)

COORDINATE = st.integers(-8, 8).map(lambda k: k / 4)
POINT = st.lists(COORDINATE, min_size=8, max_size=8)


def as_residual(x, y):
    return losses.mrn(x[:4], y[:4], x[4:], y[4:])


def as_poisson(x, y):
    return losses.pqe(x.reshape(2, 4), y.reshape(2, 4), jnp.array([0.5, 2.0]))


def as_interval(x, y):
    return losses.iqe(x.reshape(2, 4), y.reshape(2, 4), 0.3)


DISTANCES = [
    jax.jit(f)
    for f in (
        losses.euclidean_distance,
        as_residual,
        as_poisson,
        losses.interval_union,
        as_interval,
    )
]


@pytest.mark.parametrize("distance", DISTANCES, ids=lambda f: f.__name__)
@settings(max_examples=60)
@given(POINT, POINT, POINT)
def test_quasimetrics(distance, x, y, z):
    """Distances are 0 from a point to itself, never negative, and no detour is shorter."""
    x, y, z = map(jnp.float32, (x, y, z))
    assert distance(x, x) == 0
    assert distance(x, y) >= 0
    assert distance(x, z) <= distance(x, y) + distance(y, z) + 1e-4


def test_all_but_the_euclidean_are_asymmetric():
    x, y = jnp.arange(8.0) / 4, jnp.zeros(8)
    for distance in DISTANCES[1:]:
        assert abs(distance(x, y) - distance(y, x)) > 0.1
    np.testing.assert_allclose(DISTANCES[0](x, y), DISTANCES[0](y, x))
    np.testing.assert_allclose(DISTANCES[0](x, y), np.linalg.norm(np.arange(8) / 4), rtol=1e-6)


def test_the_square_of_the_published_residual_network_breaks_the_triangle_inequality():
    """The points 0, 1 and 2 on a line show why the root is needed."""
    zero, one, two = (jnp.full((1,), k) for k in (0.0, 1.0, 2.0))
    distance = lambda x, y: losses.mrn(x, y, x * 0, y * 0)
    assert distance(zero, two) <= distance(zero, one) + distance(one, two)
    assert distance(zero, two) ** 2 > distance(zero, one) ** 2 + distance(one, two) ** 2


def union_length(x, y):
    """Length of the union, as a sum over the cells between neighboring end points inside it."""
    ends = sorted({*x, *y})
    middles = [((a + b) / 2, b - a) for a, b in itertools.pairwise(ends)]
    return sum(length for m, length in middles if any(a < m < b for a, b in zip(x, y, strict=True)))


@given(POINT, POINT)
def test_interval_union_is_exact(x, y):
    ours = DISTANCES[3](jnp.float32(x), jnp.float32(y))
    np.testing.assert_allclose(ours, union_length(x, y), atol=1e-5)


def test_iqe_mixes_maximum_and_mean():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 6, 3, 4))
    parts = np.array(
        [[union_length(a, b) for a, b in zip(u, v, strict=True)] for u, v in zip(x, y, strict=True)]
    )
    for mix in (0.0, 0.3, 1.0):
        expected = mix * parts.max(-1) + (1 - mix) * parts.mean(-1)
        ours = losses.iqe(jnp.float32(x), jnp.float32(y), mix)
        np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_mrn_by_hand():
    x, y = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([1.0, 0.0, 3.0, 4.0])
    up, down = jnp.array([0.5, 3.0, 0.0]), jnp.array([1.0, 1.0, 0.0])
    np.testing.assert_allclose(losses.mrn(x, y, up, down), 1 + 2, rtol=1e-6)
    np.testing.assert_allclose(losses.mrn(x, y, down, up), 1 + 0.5, rtol=1e-6)


def test_pqe_by_hand():
    x, y = jnp.array([[1.0, 0.0], [0.0, 3.0]]), jnp.array([[0.5, 2.0], [0.0, 1.0]])
    expected = 2 * (1 - np.exp(-0.5)) + 3 * (1 - np.exp(-2.0))
    np.testing.assert_allclose(losses.pqe(x, y, jnp.array([2.0, 3.0])), expected, rtol=1e-6)


def test_the_push_ends_beyond_the_offset():
    slope = jax.vmap(jax.grad(lambda d: losses.quasimetric_push(d, 15.0, 2.0)))
    np.testing.assert_allclose(slope(jnp.array([0.0, 15.0, 30.0])), [-1, -0.5, 0], atol=1e-6)


def test_which_way_the_constraint_moves_distance_and_multiplier():
    gradient = jax.grad(losses.quasimetric_constraint, argnums=(0, 2))
    far, multiplier = gradient(3.0, 1.0, 0.7, 0.5)
    np.testing.assert_allclose(far, 0.7 * 2 * 2, rtol=1e-6)
    np.testing.assert_allclose(multiplier, -(4 - 0.25), rtol=1e-6)  # descent raises it
    assert gradient(0.5, 1.0, 0.7, 0.5) == (0, 0.25)  # satisfied: it falls
    np.testing.assert_allclose(losses.quasimetric_constraint(3.0, 1.0, 0.7, 0.5), 0.7 * 3.75)


@pytest.mark.slow
def test_push_and_constraint_find_shortest_paths_of_a_directed_ring():
    """Six states in a one-way ring; latents are a table."""
    number = 6
    steps = (np.arange(number)[None] - np.arange(number)[:, None]) % number
    source = np.arange(number)
    latents = 0.5 * np.random.default_rng(0).normal(size=(number, 6, 6))
    parameters = (jnp.float32(latents), jnp.float32(0.0))

    def distances(latents):
        return losses.iqe(latents[:, None], latents[None], 0.5)

    def loss(parameters):
        latents, raw = parameters
        d = distances(latents)
        step = d[source, (source + 1) % number]
        push = losses.quasimetric_push(d, 8.0, 0.5).mean()
        return push + losses.quasimetric_constraint(step, 1.0, jnp.exp(raw), 0.1).mean()

    @jax.jit
    def train(parameters):
        def body(carry, _):
            x, m, v = carry
            g = jax.grad(loss)(x)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
            x = jax.tree.map(lambda x, m, v: x - 0.03 * m / (jnp.sqrt(v) + 1e-6), x, m, v)
            return (x, m, v), None

        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return jax.lax.scan(body, (parameters, zeros, zeros), length=1000)[0][0]

    learned = np.array(distances(train(parameters)[0]))
    off = steps > 0
    assert np.corrcoef(learned[off], steps[off])[0, 1] > 0.95
    np.testing.assert_allclose(learned[steps == 1], 1, atol=0.25)
