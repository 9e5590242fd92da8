import jax
import jax.numpy as jnp
import numpy as np

from tests.losses.compiled import diffusion, losses
from tests.losses.contract import Case, contract, example

SHAPE = (5, 3)


def inputs(*names, **constants):
    """Samples [5, 3], times, step sizes and scales [5] between 0.2 and 0.8."""

    def make(rng):
        x = {
            name: rng.uniform(0.2, 0.8, 5)
            if name in ("time", "step_size", "scale", "weight")
            else rng.normal(size=SHAPE)
            for name in names
        }
        return {**x, **constants}

    return make


def simple(function, *names, extremes=lambda rng: [], **constants):
    return Case(function, inputs(*names, **constants), gradient=names, extremes=extremes)


def at(*times):
    return lambda rng: [{"time": np.full(5, time)} for time in times]


CASES = [
    simple(diffusion.flow_interpolant, "noise", "clean", "time", extremes=at(0.0, 1.0)),
    simple(diffusion.flow_velocity, "noise", "clean", least_noise=0.1),
    simple(diffusion.flow_step, "noisy", "velocity", "step_size"),
    simple(diffusion.flow_clean, "noisy", "velocity", "time", extremes=at(0.0, 1.0)),
    simple(diffusion.flow_noise, "noisy", "velocity", "time", extremes=at(0.0, 1.0)),
    simple(diffusion.flow_score, "noisy", "velocity", "time", extremes=at(0.0)),
    simple(diffusion.velocity_from_clean, "noisy", "clean", "time", extremes=at(0.0)),
    simple(diffusion.velocity_from_score, "noisy", "score", "time", extremes=at(1.0)),
    simple(diffusion.memoryless_scale, "time", offset=0.1, extremes=at(0.0, 1.0)),
    simple(
        diffusion.memoryless_drift, "noisy", "velocity", "time", offset=0.1, extremes=at(0.0, 1.0)
    ),
]
test_contract = contract(CASES)


def test_conversions_recover_the_ends_of_the_path():
    x = {k: jnp.float32(v) for k, v in example(CASES, diffusion.flow_interpolant).items()}
    noise, clean, time = x["noise"], x["clean"], x["time"]
    noisy, velocity = diffusion.flow_interpolant(**x), diffusion.flow_velocity(noise, clean)
    for ours, theirs in [
        (diffusion.flow_clean(noisy, velocity, time), clean),
        (diffusion.flow_noise(noisy, velocity, time), noise),
        (diffusion.velocity_from_clean(noisy, clean, time), velocity),
        (
            diffusion.velocity_from_score(noisy, diffusion.flow_score(noisy, velocity, time), time),
            velocity,
        ),
    ]:
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    # The score of N(time clean, (1 - time)^2), by differentiating its log-density.
    density = lambda x: losses.gaussian_log_prob(x, time[:, None] * clean, 1 - time[:, None]).sum()
    np.testing.assert_allclose(
        diffusion.flow_score(noisy, velocity, time), jax.grad(density)(noisy), rtol=1e-3, atol=1e-4
    )


def test_the_path_with_remaining_noise_has_its_velocity():
    noise, clean = jnp.float32([1.0, -2.0]), jnp.float32([3.0, 0.5])
    path = lambda t: diffusion.flow_interpolant(noise, clean, t, 0.1)
    np.testing.assert_allclose(path(1.0), clean + 0.1 * noise, rtol=1e-6)
    np.testing.assert_allclose(path(0.0), noise)
    np.testing.assert_allclose(
        jax.jacfwd(path)(0.3), diffusion.flow_velocity(noise, clean, 0.1), rtol=1e-5
    )
    assert losses.flow_matching(diffusion.flow_velocity(noise, clean), noise, clean) == 0


def gaussian_velocity(x, time, scale):
    """Exact velocity of the flow, E[clean - noise | x], for clean ~ N(0, scale^2)."""
    return (time * scale**2 - (1 - time)) / (time**2 * scale**2 + (1 - time) ** 2) * x


def test_memoryless_sampling_keeps_the_marginals_and_forgets_the_noise():
    """The linear SDE's moments for data N(0, 0.5^2): variance 0.25, no memory of the start."""
    with jax.enable_x64(True):
        number = 2000
        times = (jnp.arange(number) + 0.0) / number

        def step(moments, time):
            variance, memory = moments
            slope = diffusion.memoryless_drift(
                jnp.ones(1), gaussian_velocity(jnp.ones(1), time, 0.5), time, 1 / number
            )[0]
            growth = 1 + slope / number
            noise = diffusion.memoryless_scale(time, 1 / number) ** 2 / number
            return (growth**2 * variance + noise, growth * memory), None

        variance, memory = jax.lax.scan(step, (1.0, 1.0), times)[0]
    np.testing.assert_allclose(variance, 0.25, rtol=1e-2)
    assert abs(float(memory)) < 1e-2
