import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

MASK = np.array(
    [[True, False, True], [False, True, True], [True, True, True], [True, False, False]]
)


def masked_inputs(rng):
    return {"x": rng.normal(size=(4, 3)), "mask": MASK}


NOTHING = [{"mask": np.zeros((4, 3), bool)}, {"x": np.where(MASK, 1.0, np.nan)}]
CASES = [
    Case(
        losses.masked_mean,
        masked_inputs,
        gradient=("x",),
        time=("x", "mask"),
        extremes=lambda rng: NOTHING,
    ),
    Case(
        losses.masked_sum,
        masked_inputs,
        gradient=("x",),
        time=("x", "mask"),
        extremes=lambda rng: NOTHING,
    ),
    Case(
        losses.standardize,
        masked_inputs,
        gradient=("x",),
        time=("x", "mask"),
        extremes=lambda rng: [*NOTHING, {"x": np.ones((4, 3))}, {"x": np.full((4, 3), 1e15)}],
    ),
    Case(
        losses.boltzmann_weights,
        lambda rng: {
            "score": rng.normal(size=(4, 3)),
            "temperature": np.array(0.5),
            "mask": MASK,
        },
        gradient=("score", "temperature"),
        extremes=lambda rng: [
            {"score": 1e6 * rng.normal(size=(4, 3))},
            {"score": np.where(MASK, 1.0, np.nan)},
            {"score": np.array([[0, -np.inf, 1]] * 4)},
            {"mask": np.zeros(3, bool)},
        ],
    ),
    Case(
        losses.at_action,
        lambda rng: {"values": rng.normal(size=(4, 3)), "action": rng.integers(3, size=4)},
        gradient=("values",),
        diverging=lambda rng: [{"values": np.full((4, 3), -np.inf)}],
    ),
]
test_contract = contract(CASES)


def test_boltzmann_weights_are_a_masked_softmax():
    score = np.random.default_rng(0).normal(size=(2, 6))
    mask = np.array([True, True, False, True, False, True])
    expected = np.exp(score[:, mask] / 0.5)
    expected /= expected.sum(-1, keepdims=True)
    score[:, ~mask] = np.nan
    ours = losses.boltzmann_weights(jnp.float32(score), 0.5, jnp.asarray(mask))
    np.testing.assert_allclose(ours[:, mask], expected, rtol=1e-5)
    assert (ours[:, ~mask] == 0).all()


def test_means_and_deviations_cover_only_elements_that_count():
    x = np.random.default_rng(0).normal(size=(4, 3))
    counted = x[MASK]
    np.testing.assert_allclose(losses.masked_mean(jnp.float32(x), MASK), counted.mean(), rtol=1e-5)
    ours = losses.standardize(jnp.float32(x), MASK)
    np.testing.assert_allclose(ours[MASK], (counted - counted.mean()) / counted.std(), rtol=1e-4)
    assert (ours[~MASK] == 0).all()
    rows = losses.masked_mean(jnp.float32(x), MASK, axis=1)
    np.testing.assert_allclose(rows, [r[m].mean() for r, m in zip(x, MASK, strict=True)], rtol=1e-5)


@pytest.mark.slow
def test_masked_elements_have_no_gradient():
    gradient = jax.grad(lambda x: losses.standardize(x, MASK)[0, 0])(jnp.arange(12.0).reshape(4, 3))
    assert (gradient[~MASK] == 0).all() and (gradient[MASK] != 0).any()


def test_at_action():
    values = jnp.arange(6.0).reshape(2, 3)
    assert losses.at_action(values, jnp.array([2, 0])).tolist() == [2, 3]


def test_equal_elements_have_no_deviation():
    """Their float32 mean is not always equal to them."""
    for x in (jnp.full(7, 0.1), jnp.full(7, 0.7), jnp.full((3, 7), 1e6 + 0.3)):
        assert (losses.standardize(x, axis=-1) == 0).all()
    assert (losses.standardize(jnp.array([0.1, 0.1, 5.0]), jnp.array([1, 1, 0])) == 0).all()


def test_sums_cover_only_elements_that_count():
    x = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(
        losses.masked_sum(jnp.float32(x), MASK, axis=0), (x * MASK).sum(0), rtol=1e-5
    )


def test_soft_values_tilt_a_base_distribution():
    """Resampling all outcomes of a base p by p exp(v / a) gives the tilted distribution."""
    p, reward, temperature = np.array([0.2, 0.5, 0.3]), np.array([1.0, 0.0, -2.0]), 0.7
    value = reward + temperature * np.log(p)  # as if each candidate appeared with frequency p
    expected = p * np.exp(reward / temperature)
    np.testing.assert_allclose(
        losses.boltzmann_weights(jnp.float32(value), temperature),
        expected / expected.sum(),
        rtol=1e-5,
    )
