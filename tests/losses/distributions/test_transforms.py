import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

UNEVEN = np.array([-3.0, -1.0, -0.5, 0.0, 2.0, 2.5])


def numbers(rng):
    return {"x": rng.normal(size=(4, 3))}


def weights(rng):
    x = np.exp(rng.normal(size=(4, 6)))
    return x / x.sum(-1, keepdims=True)


CASES = [
    *(
        Case(
            function,
            numbers,
            gradient=("x",),
            extremes=lambda rng, far=far: [
                {"x": np.full((4, 3), far)},
                {"x": np.full((4, 3), -far)},
                {"x": np.zeros((4, 3))},
            ],
        )
        for function, far in [
            (losses.signed_hyperbolic, 1e15),
            (losses.signed_parabolic, 1e10),
            (losses.symlog, 1e30),
            (losses.symexp, 40.0),
        ]
    ),
    Case(
        losses.logarithmic,
        lambda rng: {"x": rng.uniform(0.1, 5, (4, 3)), "resolution": 0.1, "scale": 0.5},
        gradient=("x",),
        extremes=lambda rng: [{"x": np.full((4, 3), x)} for x in (0.0, 1e20, -1e-3, -1.0, -1e20)],
    ),
    Case(
        losses.logarithmic_inverse,
        lambda rng: {**numbers(rng), "resolution": 0.1, "scale": 0.5},
        gradient=("x",),
        extremes=lambda rng: [{"x": np.full((4, 3), x)} for x in (0.0, 30.0, 1e3, 1e20, -1e3)],
    ),
    Case(
        losses.symlog_squared_error,
        lambda rng: {"prediction": rng.normal(size=(4, 3)), "target": rng.normal(size=(4, 3))},
        gradient=("prediction",),
        stopped=("target",),
        extremes=lambda rng: [{"target": np.full((4, 3), 1e30)}],
    ),
    Case(
        losses.two_hot,
        lambda rng: {"x": rng.uniform(-2.5, 2.3, (4, 3)), "atoms": UNEVEN},
        gradient=("x", "atoms"),
        extremes=lambda rng: [
            {"x": np.full((4, 3), 1e20)},
            {"x": np.tile(UNEVEN[:3], (4, 1))},
            {"atoms": np.array([-1e9, -1.0, 0.0, 1.0, 5.0, 1e9])},
        ],
    ),
    Case(
        losses.two_hot_inverse,
        lambda rng: {"probs": weights(rng), "atoms": UNEVEN},
        gradient=("probs", "atoms"),
        extremes=lambda rng: [{"probs": np.eye(6)[:4]}, {"atoms": 1e9 * UNEVEN}],
    ),
]
test_contract = contract(CASES)
SIZES = st.floats(-1e6, 1e6, width=32)


@given(SIZES)
def test_transforms_equal_float64_definitions(x):
    x = np.float64(np.float32(x))
    size, sign = abs(x), np.sign(x)
    for ours, expected in [
        (losses.signed_hyperbolic, sign * (np.sqrt(size + 1) - 1) + 1e-3 * x),
        (
            losses.signed_parabolic,
            sign * (((np.sqrt(1 + 4e-3 * (size + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1),
        ),
        (losses.symlog, sign * np.log1p(size)),
    ]:
        np.testing.assert_allclose(ours(jnp.float32(x)), expected, rtol=1e-6, atol=1e-9)


@given(SIZES)
def test_inverses_are_exact_in_float32(x):
    """Exact to a few ulps, even near 0, where the published form loses all digits."""
    for scale in (1.0, 1e-6):
        y = jnp.float32(x * scale)
        there = losses.signed_hyperbolic(y)
        np.testing.assert_allclose(losses.signed_parabolic(there), y, rtol=1e-6, atol=1e-30)
        np.testing.assert_allclose(losses.symexp(losses.symlog(y)), y, rtol=2e-5, atol=1e-30)
    y = jnp.float32(abs(x))
    there = losses.logarithmic(y, 0.3, 2.0)
    np.testing.assert_allclose(losses.logarithmic_inverse(there, 0.3, 2.0), y, 2e-5, 1e-30)


def test_inverse_without_a_linear_part():
    x = jnp.array([-3.0, 0.0, 8.0])
    np.testing.assert_allclose(losses.signed_parabolic(x, 0.0), [-15, 0, 80], rtol=1e-6)


def test_slopes_at_zero():
    zero = jnp.float32(0)
    for function, slope in [
        (losses.signed_hyperbolic, 0.501),
        (losses.signed_parabolic, 1 / 0.501),
        (losses.symlog, 1),
        (losses.symexp, 1),
    ]:
        np.testing.assert_allclose(jax.grad(function)(zero), slope, rtol=1e-5)


def test_transforms_equal_rlax():
    x = jnp.linspace(-50, 50, 41)
    for ours, theirs in [
        (losses.signed_hyperbolic, rlax.signed_hyperbolic),
        (losses.signed_parabolic, rlax.signed_parabolic),
        (losses.symlog, rlax.signed_logp1),
    ]:
        np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-3, atol=1e-4)


def test_logarithmic_is_the_papers_up_to_its_constant():
    x, gamma_k, c = np.array([0.0, 0.2, 4.0]), 0.05, 0.5
    expected = c * np.log(x + gamma_k) - c * np.log(gamma_k)
    np.testing.assert_allclose(
        losses.logarithmic(jnp.float32(x), gamma_k, c), expected, rtol=1e-5, atol=1e-7
    )
    assert losses.logarithmic(jnp.float32(-1), gamma_k, c) == 0
    assert jax.grad(losses.logarithmic)(jnp.float32(0), gamma_k, c) == 10  # not half as much


def test_symlog_squared_error():
    ours = losses.symlog_squared_error(jnp.float32(1.0), jnp.float32(np.expm1(3.0)))
    np.testing.assert_allclose(ours, 2.0, rtol=1e-5)


def test_two_hot_on_integers_by_hand():
    """MuZero's example: 3.7 is 0.3 on 3 and 0.7 on 4."""
    ours = losses.two_hot(jnp.array([3.7, -2.0, 9.0, -9.0]), jnp.arange(-5.0, 6.0))
    expected = np.zeros((4, 11))
    expected[0, [8, 9]] = 0.3, 0.7
    expected[1, 3] = expected[2, 10] = expected[3, 0] = 1
    np.testing.assert_allclose(ours, expected, atol=1e-6)


@given(st.floats(-4, 4))
def test_two_hot_interpolates_and_keeps_the_scalar(x):
    atoms = jnp.float32(UNEVEN)
    ours = losses.two_hot(jnp.float32(x), atoms)
    expected = [np.interp(x, UNEVEN, row) for row in np.eye(6)]
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    np.testing.assert_allclose(ours.sum(), 1, rtol=1e-6)
    assert (ours >= 0).all() and (ours > 0).sum() <= 2
    clipped = np.clip(x, UNEVEN[0], UNEVEN[-1])
    np.testing.assert_allclose(losses.two_hot_inverse(ours, atoms), clipped, rtol=1e-5, atol=1e-6)


def test_two_hot_of_one_atom():
    np.testing.assert_array_equal(losses.two_hot(jnp.array([0.0, 5.0]), jnp.ones(1)), 1)


@pytest.mark.parametrize("number", [255, 256])
def test_symmetric_weights_have_exactly_the_mean_zero(number):
    """A plain sum over atoms up to 5e8 would be off by whole units."""
    atoms = losses.symexp(jnp.linspace(-20, 20, number))
    atoms = (atoms - atoms[::-1]) / 2
    probs = jax.nn.softmax(jnp.zeros(number))
    assert losses.two_hot_inverse(probs, atoms) == 0
    x = jnp.array([-3e5, -0.2, 0.0, 1.5, 700.0])
    np.testing.assert_allclose(
        losses.two_hot_inverse(losses.two_hot(x, atoms), atoms), x, rtol=1e-4, atol=1e-5
    )
