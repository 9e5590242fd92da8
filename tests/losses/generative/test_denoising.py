import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import diffusion, losses
from tests.losses.contract import Case, contract

SHAPE = (5, 3)
HUGE = np.full(SHAPE, 1e15)


def inputs(*names, **constants):
    """Samples [5, 3], noise levels [5] between 1 and 2, lower ones between 0.3 and 0.8."""

    def make(rng):
        x = {
            name: rng.uniform(1, 2, 5)
            if name == "sigma"
            else rng.uniform(0.3, 0.8, 5)
            if name in ("lower_sigma", "weight")
            else rng.normal(size=SHAPE)
            for name in names
        }
        return {**x, **constants}

    return make


CASES = [
    Case(
        losses.denoising_score_matching,
        inputs("score", "noise", "sigma"),
        gradient=("score",),
        stopped=("noise", "sigma"),
        extremes=lambda rng: [{"score": HUGE}, {"sigma": np.zeros(5)}],
    ),
    Case(
        losses.edm_weight,
        inputs("sigma"),
        gradient=("sigma",),
        extremes=lambda rng: [{"sigma": np.full(5, 1e-3)}, {"sigma": np.full(5, 1e5)}],
    ),
    Case(
        losses.pseudo_huber,
        inputs("prediction", "target", threshold=0.1),
        gradient=("prediction",),
        stopped=("target",),
        extremes=lambda rng: [
            {"prediction": HUGE},
            {"prediction": np.zeros(SHAPE), "target": np.zeros(SHAPE)},
        ],
    ),
    Case(
        losses.consistency,
        inputs("prediction", "target", "sigma", "lower_sigma", threshold=0.1),
        gradient=("prediction", "sigma", "lower_sigma"),
        stopped=("target",),
        extremes=lambda rng: [{"prediction": HUGE}, {"lower_sigma": np.zeros(5)}],
    ),
    Case(
        losses.diffusion_forcing,
        lambda rng: {
            **inputs("prediction", "target", "weight")(rng),
            "mask": np.array([True, False, True, True, False]),
        },
        gradient=("prediction", "weight"),
        stopped=("target",),
        time=("prediction", "target", "weight", "mask"),
        extremes=lambda rng: [
            {"mask": np.zeros(5, bool)},
            {"prediction": np.where(np.arange(5) == 1, np.nan, 1.0)[:, None] * np.ones(SHAPE)},
            {"target": np.where(np.arange(5) == 1, np.nan, 1.0)[:, None] * np.ones(SHAPE)},
            {"weight": np.where(np.arange(5) == 1, np.nan, 1.0)},
        ],
    ),
]
test_contract = contract(CASES)


@pytest.mark.slow
def test_score_matching_finds_the_score():
    """The best linear score of data N(0, 0.8^2) with noise 0.6 has slope -1 / (0.64 + 0.36)."""
    points, weights = np.polynomial.hermite_e.hermegauss(6)
    clean, noise = (x.ravel() for x in np.meshgrid(0.8 * points, points))
    weight = np.outer(weights, weights).ravel() / weights.sum() ** 2

    def loss(slope):
        noisy = jnp.float32(clean + 0.6 * noise)[:, None]
        each = losses.denoising_score_matching(
            slope * noisy, jnp.float32(noise)[:, None], jnp.full(36, 0.6)
        )
        return (weight * each).sum()

    np.testing.assert_allclose(jax.grad(loss)(-1.0), 0, atol=1e-5)
    assert jax.grad(loss)(-0.9) > 0.01
    # By hand: |0.5 * 2 + 3|^2 / 2 + |0.5 * -2 + 1|^2 / 2
    assert losses.denoising_score_matching(jnp.float32([2, -2]), jnp.float32([3, 1]), 0.5) == 8


def test_pseudo_huber_near_and_far():
    zero = jnp.zeros(2)
    np.testing.assert_allclose(
        losses.pseudo_huber(jnp.float32([3, 4]), zero, 2.0), np.sqrt(29) - 2, rtol=1e-6
    )
    np.testing.assert_allclose(
        losses.pseudo_huber(jnp.float32([3e-4, 4e-4]), zero, 2.0), 25e-8 / 4, rtol=1e-5
    )
    np.testing.assert_allclose(
        losses.pseudo_huber(jnp.float32([3e6, 4e6]), zero, 2.0), 5e6 - 2, rtol=1e-6
    )
    np.testing.assert_allclose(
        losses.consistency(jnp.float32([3, 4]), zero, 1.5, 1.25, 2.0),
        4 * (np.sqrt(29) - 2),
        rtol=1e-6,
    )


def test_distances_are_between_prediction_and_target():
    x, y = jnp.float32([3, 4]), jnp.float32([1, 5])
    np.testing.assert_allclose(losses.pseudo_huber(x, y, 2.0), 3 - 2, rtol=1e-6)


def test_the_exact_consistency_function_has_no_loss():
    """Data N(0, 1) has f(x, sigma) = x / sqrt(1 + sigma^2) along the flow; one small Euler step."""
    sigma, lower = jnp.float32(1.0), jnp.float32(0.999)
    f = lambda x, s: x / jnp.sqrt(1 + s**2)
    x = jnp.float32([0.7, -1.0])
    there = diffusion.edm_euler_step(x, x / (1 + sigma**2), sigma, lower)
    gap = losses.consistency(f(x, sigma), f(there, lower), sigma, lower, 0.01)
    wrong = losses.consistency(x, there, sigma, lower, 0.01)
    assert gap < 1e-6 < 1e-3 < wrong


def test_diffusion_forcing_counts_only_frames_in_the_mask():
    prediction, target = jnp.float32([[1.0], [5.0], [3.0]]), jnp.zeros((3, 1))
    weight = jnp.float32([1.0, jnp.nan, 2.0])
    mask = jnp.array([True, False, True])
    assert losses.diffusion_forcing(prediction, target, weight, mask) == (1 + 18) / 2
    assert losses.diffusion_forcing(prediction, target) == 35 / 3
