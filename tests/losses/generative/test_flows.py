import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.diffusion.test_flows import SHAPE, at, gaussian_velocity, inputs
from tests.losses.compiled import diffusion, losses
from tests.losses.contract import Case, contract

HUGE = np.full(SHAPE, 1e15)
CASES = [
    Case(
        losses.flow_matching,
        inputs("velocity", "noise", "clean"),
        gradient=("velocity",),
        stopped=("noise", "clean"),
        extremes=lambda rng: [{"velocity": HUGE}, {"clean": HUGE}],
    ),
    Case(
        losses.shortcut_velocity,
        inputs("velocity", "next_velocity"),
        stopped=("velocity", "next_velocity"),
    ),
    Case(
        losses.shortcut_forcing,
        inputs("prediction", "target", "time"),
        gradient=("prediction",),
        stopped=("target", "time"),
        extremes=lambda rng: [{"prediction": HUGE}, *at(0.0, 1.0)(rng)],
    ),
    Case(
        losses.adjoint_matching,
        inputs("velocity", "base_velocity", "adjoint", "scale"),
        gradient=("velocity",),
        stopped=("base_velocity", "adjoint", "scale"),
        extremes=lambda rng: [{"adjoint": HUGE}, {"scale": np.full(5, 1e-4)}],
    ),
]
test_contract = contract(CASES)


def test_flow_matching_finds_the_exact_velocity():
    points, weights = np.polynomial.hermite_e.hermegauss(6)
    noise, clean = (jnp.float32(x).ravel()[:, None] for x in np.meshgrid(points, 0.5 * points))
    weight = jnp.float32(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    time = jnp.full(36, 0.6)
    noisy = diffusion.flow_interpolant(noise, clean, time)
    loss = lambda slope: (weight * losses.flow_matching(slope * noisy, noise, clean)).sum()
    best = gaussian_velocity(1.0, 0.6, 0.5)
    np.testing.assert_allclose(jax.grad(loss)(best), 0, atol=1e-5)
    assert jax.grad(loss)(best + 0.1) > 0.01


def test_shortcut_of_two_exact_half_steps_is_one_exact_step():
    noisy, velocity, next_velocity = (jnp.float32(x) for x in ([1.0, 2], [0.5, -1], [0.25, 3]))
    half = flow = diffusion.flow_step(noisy, velocity, 0.125)
    flow = diffusion.flow_step(half, next_velocity, 0.125)
    whole = diffusion.flow_step(noisy, losses.shortcut_velocity(velocity, next_velocity), 0.25)
    np.testing.assert_allclose(whole, flow, rtol=1e-6)


def test_shortcut_forcing_is_the_weighted_error_of_velocities():
    """Compare with (0.9 t + 0.1) (1 - t)^2 |(prediction - noisy) / (1 - t) - (v + v') / 2|^2."""
    rng = np.random.default_rng(0)
    noisy, prediction, half_clean, next_clean = rng.normal(size=(4, *SHAPE))
    time, half = rng.uniform(0, 0.4, 5), 0.125
    t = time[:, None]
    v = (half_clean - noisy) / (1 - t)
    next_noisy = noisy + half * v
    next_v = (next_clean - next_noisy) / (1 - t - half)
    error = (prediction - noisy) / (1 - t) - (v + next_v) / 2
    expected = (0.9 * time + 0.1) * (1 - time) ** 2 * (error**2).mean(-1)
    noisy, prediction, half_clean, next_clean, time = map(
        jnp.float32, (noisy, prediction, half_clean, next_clean, time)
    )
    v = diffusion.velocity_from_clean(noisy, half_clean, time)
    next_noisy = diffusion.flow_step(noisy, v, jnp.full(5, half))
    next_v = diffusion.velocity_from_clean(next_noisy, next_clean, time + half)
    target = diffusion.flow_clean(noisy, losses.shortcut_velocity(v, next_v), time)
    np.testing.assert_allclose(
        losses.shortcut_forcing(prediction, target, time), expected, rtol=1e-4
    )


def test_adjoint_matching_by_hand():
    velocity, base, adjoint = jnp.float32([2, 0]), jnp.float32([1, 3]), jnp.float32([4, 5])
    ours = losses.adjoint_matching(velocity, base, adjoint, jnp.float32(0.5))
    assert ours == (2 / 0.5 + 0.5 * 4) ** 2 + (-6 / 0.5 + 0.5 * 5) ** 2


@pytest.mark.slow
def test_adjoint_matching_reaches_the_tilted_density():
    """N(0, 0.5^2) exp(c x) is N(c 0.5^2, 0.5^2). A linear reward's lean adjoint does not depend on
    the path, so the loss's minimizer is known at each time, hence the mean of the samples."""
    with jax.enable_x64(True):
        number, reward_slope = 2000, 3.0
        h = 1 / number
        times = jnp.arange(number) / number

        def drift(x, time, velocity_change=0.0):
            velocity = gaussian_velocity(x, time, 0.5) + velocity_change
            return diffusion.memoryless_drift(x, velocity, time, h)

        def back(adjoint, time):
            pullback = jax.vjp(lambda x: drift(x, time), jnp.zeros(1))[1](adjoint)[0]
            earlier = diffusion.flow_step(adjoint, pullback, jnp.asarray(h))
            return earlier, earlier

        _, adjoints = jax.lax.scan(back, jnp.array([-reward_slope]), times, reverse=True)

        def minimizer(adjoint, time):
            """Take one Newton step, as the loss is quadratic in the velocity."""
            scale = diffusion.memoryless_scale(time, h)
            loss = lambda v: losses.adjoint_matching(v, jnp.zeros(1), adjoint, scale)
            gradient, curvature = jax.grad(loss)(jnp.zeros(1)), jax.hessian(loss)(jnp.zeros(1))
            return -gradient / curvature[0]

        changes = jax.vmap(minimizer)(adjoints, times)
        move = lambda mean, inputs: (mean + h * drift(mean, *inputs), None)
        mean = jax.lax.scan(move, jnp.zeros(1), (times, changes))[0]
    np.testing.assert_allclose(mean, reward_slope * 0.25, rtol=1e-2)
