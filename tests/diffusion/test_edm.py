import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import diffusion, losses
from tests.losses.contract import Case, contract, example

SHAPE = (5, 3)


def inputs(*names, **constants):
    """Samples [5, 3], noise levels [5] between 1 and 2, lower ones between 0.3 and 0.8."""

    def make(rng):
        x = {
            name: rng.uniform(0.3, 0.8, 5)
            if name in ("next_sigma", "lower_sigma", "fraction")
            else rng.uniform(1, 2, 5)
            if name == "sigma"
            else rng.normal(size=SHAPE)
            for name in names
        }
        return {**x, **constants}

    return make


def simple(function, *names, extremes=lambda rng: [], **constants):
    return Case(function, inputs(*names, **constants), gradient=names, extremes=extremes)


def small_and_large(rng):
    return [{"sigma": np.full(5, 1e-3)}, {"sigma": np.full(5, 1e5)}]


CASES = [
    simple(
        diffusion.karras_sigmas,
        "fraction",
        extremes=lambda rng: [{"fraction": np.zeros(5)}, {"fraction": np.ones(5)}],
    ),
    simple(diffusion.edm_preconditioning, "sigma", extremes=small_and_large),
    simple(diffusion.edm_denoised, "noisy", "output", "sigma", extremes=small_and_large),
    simple(
        diffusion.edm_churn,
        "noisy",
        "noise",
        "sigma",
        amount=0.2,
        extremes=lambda rng: [{"amount": 0.0}, {"sigma": np.zeros(5)}],
    ),
    simple(
        diffusion.edm_euler_step,
        "noisy",
        "denoised",
        "sigma",
        "next_sigma",
        extremes=lambda rng: [{"next_sigma": np.zeros(5)}, *small_and_large(rng)],
    ),
    simple(
        diffusion.edm_heun_step,
        "noisy",
        "denoised",
        "next_denoised",
        "sigma",
        "next_sigma",
        extremes=lambda rng: [{"next_sigma": np.zeros(5)}, *small_and_large(rng)],
    ),
    simple(
        diffusion.consistency_output,
        "noisy",
        "output",
        "sigma",
        extremes=lambda rng: [{"sigma": np.full(5, 0.002)}, *small_and_large(rng)],
    ),
]
test_contract = contract(CASES)


def test_karras_sigmas_fall_from_largest_to_smallest():
    sigma = diffusion.karras_sigmas(jnp.linspace(0, 1, 18))
    index = np.arange(18) / 17
    expected = (80 ** (1 / 7) + index * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
    np.testing.assert_allclose(sigma, expected, rtol=1e-3)
    np.testing.assert_allclose(
        diffusion.karras_sigmas(jnp.linspace(0, 1, 5), 4.0, 1.0, rho=1.0),
        [4, 3.25, 2.5, 1.75, 1],
        rtol=1e-5,
    )
    even = diffusion.karras_sigmas(jnp.linspace(0, 1, 3), 4.0, 1.0, rho=np.inf)
    np.testing.assert_allclose(even, [4, 2, 1], rtol=1e-5)


@pytest.mark.parametrize("sigma", [0.02, 0.7, 30.0])
def test_preconditioning_keeps_unit_variances(sigma):
    """Input and target have variance 1, c_skip minimizes c_out, and the weight is 1 / c_out^2."""
    d = 0.5
    skip, out, into, level = map(float, diffusion.edm_preconditioning(jnp.float32(sigma), d))
    np.testing.assert_allclose(into**2 * (d**2 + sigma**2), 1, rtol=1e-5)
    amplified = lambda skip: (1 - skip) ** 2 * d**2 + skip**2 * sigma**2  # Var(clean - skip noisy)
    np.testing.assert_allclose(out**2, amplified(skip), rtol=1e-4)
    assert amplified(skip) <= min(amplified(skip + 1e-2), amplified(skip - 1e-2))
    np.testing.assert_allclose(losses.edm_weight(jnp.float32(sigma), d), 1 / out**2, rtol=1e-4)
    np.testing.assert_allclose(level, np.log(sigma) / 4, rtol=1e-5)
    noisy, output = jnp.float32([2.0, -1]), jnp.float32([0.3, 4])
    np.testing.assert_allclose(
        diffusion.edm_denoised(noisy, output, jnp.float32(sigma), d),
        skip * noisy + out * output,
        rtol=1e-5,
    )


def test_last_step_of_either_is_the_denoised_sample():
    x = {k: jnp.float32(v) for k, v in example(CASES, diffusion.edm_heun_step).items()} | {
        "next_sigma": jnp.zeros(5)
    }
    np.testing.assert_allclose(diffusion.edm_heun_step(**x), x["denoised"], atol=1e-6)


def test_churn_adds_the_missing_variance():
    noisy, level = diffusion.edm_churn(jnp.ones(1), jnp.full(1, 2.0), jnp.float32(2), 0.5)
    assert level == 3
    np.testing.assert_allclose(noisy, 1 + 2 * np.sqrt(9 - 4), rtol=1e-6)


def test_consistency_output_is_the_sample_at_the_boundary():
    noisy, output = jnp.float32([2.0, -1]), jnp.float32([0.3, 4])
    assert (diffusion.consistency_output(noisy, output, jnp.float32(0.002)) == noisy).all()
    sigma = 3.0
    expected = 0.25 / (2.998**2 + 0.25) * np.array(noisy) + 0.5 * 2.998 / np.sqrt(9.25) * np.array(
        output
    )
    np.testing.assert_allclose(
        diffusion.consistency_output(noisy, output, jnp.float32(sigma)), expected, rtol=1e-5
    )


def solve(number, heun):
    """Sample from sigma 5 to 0 with N(0, 1)'s exact denoiser: x(sigma) ~ sqrt(1 + sigma^2)."""
    sigma = diffusion.karras_sigmas(jnp.linspace(0, 1, number), 5.0, 0.01, 3.0)
    sigma = jnp.append(sigma, 0.0)
    denoiser = lambda x, s: x / (1 + s**2)

    def step(x, levels):
        s, lower = levels
        euler = diffusion.edm_euler_step(x, denoiser(x, s), s, lower)
        better = diffusion.edm_heun_step(x, denoiser(x, s), denoiser(euler, lower), s, lower)
        return better if heun else euler, None

    start = jnp.array([np.sqrt(26.0)])
    return float(jax.lax.scan(step, start, (sigma[:-1], sigma[1:]))[0][0]) - 1


def test_orders_of_euler_and_heun():
    with jax.enable_x64(True):
        euler, heun = ([solve(n, h) for n in (20, 40)] for h in (False, True))
    assert abs(heun[1]) < 2e-3 < 0.02 < abs(euler[1]) < 0.2
    assert 1.7 < euler[0] / euler[1] < 2.4 and heun[0] / heun[1] > 3.2
