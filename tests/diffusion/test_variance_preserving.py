import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import diffusion, losses
from tests.losses.contract import Case, contract, example

SHAPE = (5, 3)
HUGE = np.full(SHAPE, 1e15)


def inputs(*names):
    """Samples [5, 3], noise levels [5] between 0.2 and 0.5, less noisy ones between 0.6 and 0.9."""

    def make(rng):
        return {
            name: rng.uniform(0.6, 0.9, 5)
            if name == "previous_alpha_bar"
            else rng.uniform(0.2, 0.5, 5)
            if name in ("alpha_bar", "time", "sigma")
            else rng.normal(size=SHAPE)
            for name in names
        }

    return make


def ends(rng):
    return [{"alpha_bar": np.zeros(5)}, {"alpha_bar": np.ones(5)}]


def simple(function, *names, **more):
    return Case(function, inputs(*names), gradient=names, **more)


CASES = [
    simple(
        diffusion.cosine_alpha_bar,
        "time",
        extremes=lambda rng: [{"time": np.zeros(5)}, {"time": np.ones(5)}],
    ),
    simple(
        diffusion.linear_alpha_bar,
        "time",
        extremes=lambda rng: [{"time": np.zeros(5)}, {"time": np.ones(5)}],
    ),
    Case(
        diffusion.alpha_bar_from_beta,
        lambda rng: {"beta": rng.uniform(0.1, 0.3, 4)},
        gradient=("beta",),
        time=("beta",),
        extremes=lambda rng: [{"beta": np.zeros(4)}, {"beta": np.ones(4)}],
    ),
    Case(
        diffusion.beta_from_alpha_bar,
        lambda rng: {"alpha_bar": np.array([0.9, 0.6, 0.3, 0.1])},
        gradient=("alpha_bar",),
        time=("alpha_bar",),
        extremes=lambda rng: [
            {"alpha_bar": np.array([0.9, 0.6, 0.3, 0.0])},
            {"alpha_bar": np.ones(4)},
        ],
    ),
    simple(diffusion.add_noise, "clean", "noise", "alpha_bar", extremes=ends),
    simple(
        diffusion.clean_from_noise,
        "noisy",
        "noise",
        "alpha_bar",
        extremes=lambda rng: [{"alpha_bar": np.ones(5)}, {"noisy": HUGE}],
    ),
    simple(
        diffusion.noise_from_clean,
        "noisy",
        "clean",
        "alpha_bar",
        extremes=lambda rng: [{"alpha_bar": np.zeros(5)}, {"noisy": HUGE}],
    ),
    simple(diffusion.v_target, "clean", "noise", "alpha_bar", extremes=ends),
    simple(diffusion.clean_from_v, "noisy", "v", "alpha_bar", extremes=ends),
    simple(diffusion.noise_from_v, "noisy", "v", "alpha_bar", extremes=ends),
    simple(
        diffusion.score_from_noise,
        "noise",
        "alpha_bar",
        extremes=lambda rng: [{"alpha_bar": np.zeros(5)}],
    ),
    simple(
        diffusion.denoising_posterior,
        "noisy",
        "clean",
        "alpha_bar",
        "previous_alpha_bar",
        extremes=lambda rng: [
            {"alpha_bar": np.zeros(5)},
            {"previous_alpha_bar": np.ones(5)},
            {"alpha_bar": np.full(5, 0.5), "previous_alpha_bar": np.full(5, 0.5)},
        ],
    ),
    Case(
        diffusion.ddim_step,
        lambda rng: {
            **inputs("noisy", "clean", "alpha_bar", "previous_alpha_bar")(rng),
            "eta": 0.7,
        },
        gradient=("noisy", "clean", "alpha_bar", "previous_alpha_bar"),
        extremes=lambda rng: [
            {"alpha_bar": np.zeros(5)},
            {"previous_alpha_bar": np.ones(5)},
            {"previous_alpha_bar": np.ones(5), "eta": 1.0},
            {"alpha_bar": np.full(5, 0.5), "previous_alpha_bar": np.full(5, 0.5)},
            {"eta": 0.0},
        ],
    ),
    Case(
        diffusion.dpm_solver_step,
        lambda rng: {
            **inputs("noisy", "clean", "earlier_clean", "alpha_bar", "previous_alpha_bar")(rng),
            "earlier_alpha_bar": rng.uniform(0.05, 0.15, 5),
        },
        gradient=(
            *("noisy", "clean", "earlier_clean"),
            *("alpha_bar", "previous_alpha_bar", "earlier_alpha_bar"),
        ),
        extremes=lambda rng: [
            {"previous_alpha_bar": np.ones(5)},
            {"alpha_bar": np.full(5, 0.5), "earlier_alpha_bar": np.full(5, 0.5)},
            {"alpha_bar": np.full(5, 0.5), "previous_alpha_bar": np.full(5, 0.5)},
            {"noisy": HUGE},
        ],
    ),
]
test_contract = contract(CASES)


@pytest.mark.slow
def test_conversions_recover_clean_samples_and_noise():
    x = {
        k: jnp.float32(v)
        for k, v in inputs("clean", "noise", "alpha_bar")(np.random.default_rng(0)).items()
    }
    clean, noise, level = x["clean"], x["noise"], x["alpha_bar"]
    noisy, v = diffusion.add_noise(clean, noise, level), diffusion.v_target(clean, noise, level)
    for ours, theirs in [
        (diffusion.clean_from_noise(noisy, noise, level), clean),
        (diffusion.noise_from_clean(noisy, clean, level), noise),
        (diffusion.clean_from_v(noisy, v, level), clean),
        (diffusion.noise_from_v(noisy, v, level), noise),
    ]:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        (noisy - np.sqrt(level)[:, None] * clean) ** 2,
        (1 - level[:, None]) * noise**2,
        rtol=1e-3,
        atol=1e-6,
    )
    # The score of q(noisy | clean), by differentiating its log-density.
    density = lambda x: losses.gaussian_log_prob(
        x, jnp.sqrt(level)[:, None] * clean, jnp.sqrt(1 - level)[:, None]
    ).sum()
    np.testing.assert_allclose(
        diffusion.score_from_noise(noise, level), jax.grad(density)(noisy), rtol=1e-3, atol=1e-4
    )


def test_schedules():
    time = np.linspace(0, 1, 1001)
    cosine, linear = (
        np.array(f(jnp.float32(time)))
        for f in (diffusion.cosine_alpha_bar, diffusion.linear_alpha_bar)
    )
    f = lambda t: np.cos((t + 0.008) / 1.008 * np.pi / 2) ** 2
    np.testing.assert_allclose(cosine, f(time) / f(0), atol=1e-6)
    wide = lambda t: np.cos((t + 0.3) / 1.3 * np.pi / 2) ** 2
    np.testing.assert_allclose(
        diffusion.cosine_alpha_bar(jnp.float32(time), 0.3), wide(time) / wide(0), atol=1e-6
    )
    np.testing.assert_allclose(
        diffusion.linear_alpha_bar(jnp.float32(time), 2.0, 3.0),
        np.exp(-2 * time - 0.5 * time**2),
        rtol=1e-5,
    )
    # A thousand steps of Ho et al. approach the continuous schedule.
    steps = diffusion.alpha_bar_from_beta(jnp.linspace(1e-4, 0.02, 1000))
    np.testing.assert_allclose(steps, np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)), rtol=1e-3)
    np.testing.assert_allclose(steps, linear[1:], atol=5e-3)
    for alpha_bar in (cosine, linear):
        assert alpha_bar[0] == 1 and (np.diff(alpha_bar) < 0).all()
    beta = diffusion.beta_from_alpha_bar(jnp.float32(cosine[1:]))
    assert beta.max() == np.float32(0.999) and beta.min() > 0
    np.testing.assert_allclose(diffusion.alpha_bar_from_beta(beta)[:-1], cosine[1:-1], atol=1e-4)


def test_posterior_is_bayes_rule():
    """Condition the joint Gaussian of (x_(t-1), x_t) given x_0 on x_t, in float64."""
    clean, noisy, b, previous = 0.7, -1.2, 0.3, 0.8
    alpha = b / previous
    mean = np.sqrt([previous, b]) * clean
    covariance = np.array(
        [[1 - previous, np.sqrt(alpha) * (1 - previous)], [np.sqrt(alpha) * (1 - previous), 1 - b]]
    )
    expected = mean[0] + covariance[0, 1] / covariance[1, 1] * (noisy - mean[1])
    variance = covariance[0, 0] - covariance[0, 1] ** 2 / covariance[1, 1]
    ours = diffusion.denoising_posterior(
        *(jnp.float32([x]) for x in (noisy, clean)), *map(jnp.float32, (b, previous))
    )
    np.testing.assert_allclose(ours[0], [expected], rtol=1e-5)
    np.testing.assert_allclose(ours[1], variance, rtol=1e-5)


def test_ddim_with_full_noise_is_ddpm():
    x = {k: jnp.float32(v) for k, v in example(CASES, diffusion.denoising_posterior).items()}
    mean, variance = diffusion.denoising_posterior(**x)
    ours, scale = diffusion.ddim_step(**x, eta=1.0)
    np.testing.assert_allclose(ours, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scale**2, variance, rtol=1e-4)
    assert (diffusion.ddim_step(**x)[1] == 0).all()


def test_ddim_carries_noise_to_data():
    """Small steps with the exact denoiser of N(0, 0.5^2) turn x = z into 0.5 z."""
    level = diffusion.cosine_alpha_bar(jnp.linspace(1, 0, 400)).at[0].set(1e-5)

    def step(x, levels):
        b, cleaner = levels
        clean = jnp.sqrt(b) * 0.25 / (b * 0.25 + 1 - b) * x
        return diffusion.ddim_step(x, clean, b, cleaner)[0], None

    start = jnp.array([-1.0, 0.5, 2.0])
    end = jax.lax.scan(step, start, (level[:-1], level[1:]))[0]
    np.testing.assert_allclose(end, 0.5 * start, rtol=2e-2)


def test_dpm_solver_is_its_formula():
    """Compare with the update in terms of lambda = log(alpha / sigma), in float64."""
    x = example(CASES, diffusion.dpm_solver_step)
    alpha, sigma = (lambda b: np.sqrt(b)), (lambda b: np.sqrt(1 - b))
    levels = x["earlier_alpha_bar"], x["alpha_bar"], x["previous_alpha_bar"]
    before, now, after = (np.log(alpha(b) / sigma(b)) for b in levels)
    h, ratio = after - now, (now - before) / (after - now)
    slope = (x["clean"] - x["earlier_clean"]) / ratio[:, None]
    growth = alpha(levels[2]) * np.expm1(-h)
    expected = (sigma(levels[2]) / sigma(levels[1]))[:, None] * x["noisy"]
    expected -= growth[:, None] * (x["clean"] + 0.5 * slope)
    with jax.enable_x64(True):
        given = {k: jnp.asarray(v) for k, v in x.items()}
        np.testing.assert_allclose(diffusion.dpm_solver_step(**given), expected, rtol=1e-10)
        first = diffusion.dpm_solver_step(**given | {"earlier_alpha_bar": given["alpha_bar"]})
        ddim = diffusion.ddim_step(
            *[given[k] for k in ("noisy", "clean")], *map(jnp.asarray, levels[1:])
        )
        np.testing.assert_allclose(first, ddim[0], rtol=1e-10)
        last = diffusion.dpm_solver_step(**given | {"previous_alpha_bar": jnp.ones(5)})
        np.testing.assert_allclose(last, x["clean"], rtol=1e-10)
