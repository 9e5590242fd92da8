import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract, example

SHAPE = (5, 3)


def inputs(*names, **constants):
    def make(rng):
        x = {
            name: rng.uniform(0.5, 1.0, 5)
            if name == "scale"
            else rng.normal(size=5)
            if name in ("value", "advantage")
            else rng.normal(size=SHAPE)
            for name in names
        }
        return {**x, **constants}

    return make


HUGE = np.full(SHAPE, 1e10)
MASK = np.array([True, False, True, True, False])
CASES = [
    Case(
        losses.denoising_log_prob,
        inputs("sample", "mean", "scale", least_scale=0.1),
        gradient=("sample", "mean", "scale"),
        extremes=lambda rng: [{"scale": np.zeros(5)}, {"sample": HUGE}],
    ),
    Case(
        losses.denoising_advantage,
        lambda rng: {
            "advantage": rng.normal(size=5),
            "remaining": np.arange(5),
            "denoising_discount": 0.9,
        },
        gradient=("advantage",),
        extremes=lambda rng: [{"denoising_discount": 0.0}, {"advantage": np.full(5, 1e6)}],
    ),
    Case(
        losses.denoising_clip,
        lambda rng: {"fraction": rng.uniform(size=5), "clip": 0.1},
        gradient=("fraction",),
        extremes=lambda rng: [{"fraction": np.zeros(5)}, {"fraction": np.ones(5)}],
    ),
    Case(
        losses.denoising_kl,
        inputs("mean", "base_mean", "scale"),
        gradient=("mean", "scale"),
        stopped=("base_mean",),
        extremes=lambda rng: [{"mean": HUGE}, {"base_mean": HUGE}],
    ),
    Case(
        losses.vard,
        inputs("value", "mean", "base_mean", "scale", beta=0.1),
        gradient=("value", "mean", "scale"),
        stopped=("base_mean",),
        extremes=lambda rng: [{"mean": HUGE}, {"value": np.full(5, 1e6)}],
    ),
]
test_contract = contract(CASES)


def test_step_likelihood_has_a_floor():
    x = {k: jnp.float32(v) for k, v in example(CASES, losses.denoising_log_prob).items()}
    x["scale"] = jnp.float32([0.01, 0.2, 0.3, 0.0, 1.0])
    floor = np.maximum(x["scale"], 0.15)[:, None]
    expected = scipy.stats.norm.logpdf(x["sample"], x["mean"], floor).sum(-1)
    x["least_scale"] = 0.15
    np.testing.assert_allclose(losses.denoising_log_prob(**x), expected, rtol=1e-4)
    gradient = jax.grad(lambda s: losses.denoising_log_prob(**{**x, "scale": s}).sum())(x["scale"])
    assert ((gradient == 0) == (x["scale"] < 0.15)).all()


def test_sum_over_the_chain_is_its_joint_density():
    """Compare x1 ~ N(0, 1), x0 ~ N(x1 / 2, 0.5^2) with the joint Gaussian, by its covariance."""
    x1, x0 = 0.7, -0.4
    steps = losses.denoising_log_prob(
        jnp.float32([[x1], [x0]]), jnp.float32([[0], [x1 / 2]]), jnp.float32([1, 0.5])
    )
    covariance = [[1, 0.5], [0.5, 0.5**2 + 0.25]]
    expected = scipy.stats.multivariate_normal([0, 0], covariance).logpdf([x1, x0])
    np.testing.assert_allclose(losses.masked_sum(steps, axis=0), expected, rtol=1e-5)
    last = losses.masked_sum(steps, jnp.array([False, True]), axis=0)
    np.testing.assert_allclose(last, scipy.stats.norm.logpdf(x0, x1 / 2, 0.5), rtol=1e-5)


def test_policy_gradient_of_a_chain_is_that_of_its_last_sample():
    """Compare with the exact gradient in (a, b) for x1 ~ N(0, 1), x0 ~ N(a x1 + b, s^2) and reward
    -(x0 - 1)^2, by quadrature over the chain with the steps' likelihoods."""
    points, weights = np.polynomial.hermite_e.hermegauss(8)
    z1, z0 = (x.ravel() for x in np.meshgrid(points, points))
    weight = np.outer(weights, weights).ravel() / weights.sum() ** 2
    a, b, s = 0.5, 0.2, 0.7
    x1, x0 = z1, a * z1 + b + s * z0
    reward = jnp.float32(-((x0 - 1) ** 2))

    def loss(params):
        mean = (params[0] * jnp.float32(x1) + params[1])[:, None]
        log_prob = losses.denoising_log_prob(jnp.float32(x0)[:, None], mean, jnp.full(64, s))
        old = jax.lax.stop_gradient(log_prob)
        advantage = losses.denoising_advantage(reward, jnp.zeros(64, int), 0.9)
        each = losses.clipped_surrogate(log_prob, old, advantage, 0.2)
        return (jnp.float32(weight) * each).sum()

    exact = jax.grad(lambda p: p[0] ** 2 + s**2 + (p[1] - 1) ** 2)(jnp.float32([a, b]))
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(jnp.float32([a, b])), exact, rtol=1e-3)


def test_discount_and_clip_grow_toward_the_clean_sample():
    ours = losses.denoising_advantage(jnp.float32(2), jnp.array([2, 1, 0]), 0.5)
    np.testing.assert_allclose(ours, [0.5, 1, 2])
    clip = losses.denoising_clip(jnp.float32([0, 0.5, 1]), 0.1, first_clip=0.01, rate=3.0)
    middle = 0.01 + 0.09 * (np.exp(1.5) - 1) / (np.exp(3) - 1)
    np.testing.assert_allclose(clip, [0.01, middle, 0.1], rtol=1e-5)


def test_divergence_equals_the_gaussian_one():
    x = {k: jnp.float32(v) for k, v in example(CASES, losses.denoising_kl).items()}
    scale = jnp.broadcast_to(x["scale"][:, None], SHAPE)
    theirs = losses.gaussian_kl(x["mean"], scale, x["base_mean"], scale)
    np.testing.assert_allclose(losses.denoising_kl(**x), theirs, rtol=1e-4)


def test_vard_moves_the_mean_up_the_value():
    """The optimum for value 2 x - x^2, beta 0.5 and scale 1 has 2 - 2 m = 0.5 (m - base)."""

    def gradient(m):
        value = lambda m: (2 * m - m**2)[0]
        return jax.grad(lambda m: losses.vard(value(m), m, jnp.zeros(1), jnp.float32(1), 0.5))(m)

    np.testing.assert_allclose(gradient(jnp.float32([0.8])), 0, atol=1e-6)
    assert gradient(jnp.float32([0.0])) < 0
