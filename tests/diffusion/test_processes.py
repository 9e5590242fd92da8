"""Processes of noise against closed forms: for Gaussian data every exact prediction is linear, so
training examples, laws of samplers, guidance and orders of convergence are known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import diffusion, losses
from jaxrl.core import random
from jaxrl.diffusion import EDM, Consistency, Flow, Hooks, VariancePreserving

CASES = []  # classes have no contract of functions
MEAN, SPREAD = 0.7, 0.4  # of the data
KEY = random.key(0)


def posterior(signal, spread, x, mean=MEAN):
    """Return E[clean | x] where x = signal * clean + spread * noise, and the slope of it."""
    slope = SPREAD**2 * signal / (SPREAD**2 * signal**2 + spread**2)
    return mean + slope * (x - signal * mean), slope


def exact(process, mean=MEAN):
    """Return the network that predicts data N(mean, SPREAD^2) perfectly."""

    def predict(x, level):
        level = level[..., None]
        if isinstance(process, Flow):
            clean, _ = posterior(level, 1 - level, x, mean)
            return (clean - x) / (1 - level)
        if isinstance(process, EDM):
            sigma = jnp.exp(4 * level)
            skip, out, into, _ = diffusion.edm_preconditioning(sigma, process.data_scale)
            return (posterior(1.0, sigma, x / into, mean)[0] - skip * x / into) / out
        bar = process.alpha_bars()[jnp.round(level * process.levels).astype(int)]
        clean, _ = posterior(jnp.sqrt(bar), jnp.sqrt(1 - bar), x, mean)
        if process.prediction == "clean":
            return clean
        noise = (x - jnp.sqrt(bar) * clean) / jnp.sqrt(1 - bar)
        return {"noise": noise, "v": jnp.sqrt(bar) * noise - jnp.sqrt(1 - bar) * clean}[
            process.prediction
        ]

    return predict


# -------------------------------------------------------------------------------- what is learned


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_variance_preserving_examples(schedule, axes):
    process = VariancePreserving(7, schedule, axes=axes)
    clean = jax.random.normal(KEY, (500, 3, 2))
    x = process.add_noise(random.key(1), clean)
    assert x.level.shape == x.weight.shape == ((500, 3) if axes == 1 else (500,))
    number = np.round(np.asarray(x.level) * 7).astype(int)
    assert set(number.reshape(-1)) == set(range(1, 8))
    bars = process.alpha_bars()
    assert bars[0] == 1 and (np.diff(bars) < 0).all() and 0 < bars[-1] < 0.01
    bar = bars[number].reshape(*number.shape, *(1,) * axes)
    np.testing.assert_allclose(
        x.noisy, np.sqrt(bar) * clean + np.sqrt(1 - bar) * x.target, atol=1e-5
    )
    other = VariancePreserving(7, schedule, prediction="clean", axes=axes)
    np.testing.assert_array_equal(other.add_noise(random.key(1), clean).target, clean)
    v = VariancePreserving(7, schedule, prediction="v", axes=axes).add_noise(random.key(1), clean)
    np.testing.assert_allclose(
        v.target, np.sqrt(bar) * x.target - np.sqrt(1 - bar) * clean, atol=1e-5
    )


def test_the_linear_schedule_is_that_of_published_policies():
    """Products of 1 - beta_t = exp(-b0 / K - (b1 - b0) (2 t - 1) / (2 K^2)), b0 = 0.1, b1 = 10."""
    t = np.arange(1, 6)
    alpha = np.exp(-0.1 / 5 - 0.5 * 9.9 * (2 * t - 1) / 25)
    np.testing.assert_allclose(VariancePreserving(5).alpha_bars()[1:], np.cumprod(alpha), rtol=1e-5)


@pytest.mark.parametrize("axes", [1, 2])
def test_edm_and_flow_examples(axes):
    clean = jax.random.normal(KEY, (500, 3, 2))
    wide = lambda x: np.asarray(x).reshape(*x.shape, *(1,) * axes)
    x = EDM(axes=axes).add_noise(random.key(1), clean)
    sigma = np.exp(4 * wide(x.level))
    skip, out, into, _ = map(np.asarray, diffusion.edm_preconditioning(jnp.asarray(sigma), 0.5))
    np.testing.assert_allclose(skip * x.noisy / into + out * x.target, clean, atol=2e-4)
    # Inputs and targets have unit variance for data of that scale.
    unit = EDM(1.0, axes=axes).add_noise(random.key(1), clean)
    for value in (unit.noisy, unit.target):
        assert abs(float(value.std()) - 1) < 0.05
    logs = np.log(sigma)
    assert abs(logs.mean() + 1.2) < 0.2 and abs(logs.std() - 1.2) < 0.15
    x = Flow(axes=axes).add_noise(random.key(1), clean)
    time = wide(x.level)
    noise = np.asarray(clean) - x.target
    np.testing.assert_allclose(x.noisy, (1 - time) * noise + time * clean, atol=1e-5)
    assert 0 <= time.min() < 0.02 and 0.98 < time.max() <= 1


# --------------------------------------------------------------------------------- laws of samples


def moments(process, levels):
    """Return mean and variance of DDPM's last sample with exact predictions, by recursion."""
    bars = np.asarray(process.alpha_bars(), np.float64)
    mean, variance = 0.0, 1.0
    for k in range(levels, 0, -1):
        now, after = bars[k], bars[k - 1]
        _, slope = posterior(np.sqrt(now), np.sqrt(1 - now), 0.0)
        share, alpha = (1 - after) / (1 - now), now / after
        of_clean, of_noisy = np.sqrt(after) * (1 - alpha) / (1 - now), np.sqrt(alpha) * share
        shift = of_clean * (MEAN - slope * np.sqrt(now) * MEAN)
        factor = of_clean * slope + of_noisy
        mean = factor * mean + shift
        variance = factor**2 * variance + (1 - alpha) * share
    return mean, variance


@pytest.mark.parametrize("prediction", ["noise", "clean", "v"])
def test_the_law_of_ddpm(prediction):
    """Samples of few levels have the moments of their recursion; those of many, the data's."""
    n = 20_000
    for levels, rate in ((5, (0.1, 10.0)), (1000, (0.1, 20.0))):
        process = VariancePreserving(levels, rate=rate, prediction=prediction)
        x = np.asarray(process.sample(KEY, exact(process), (n, 1)))[:, 0]
        mean, variance = moments(process, levels)
        assert abs(x.mean() - mean) < 5 * np.sqrt(variance / n)
        assert abs(x.var() - variance) < 5 * variance * np.sqrt(2 / n)
    np.testing.assert_allclose([mean, variance], [MEAN, SPREAD**2], rtol=0.03)


def carry(process, steps, **options):
    """Carry noise to data by a deterministic sampler; return its largest error."""
    start = jnp.array([[-1.5], [0.3], [1.0]])
    if isinstance(process, EDM):
        top, signal = np.sqrt(SPREAD**2 + process.largest**2), 1.0
        begin = process.largest * start
    else:
        # The noise's end is exact: flows begin there, and VP at the last level's own law.
        bar = 0.0 if isinstance(process, Flow) else process.alpha_bars()[-1]
        signal, begin = np.sqrt(bar), start
        top = np.sqrt(bar * SPREAD**2 + 1 - bar)
    end = process.sample(KEY, exact(process), begin.shape, steps=steps, start=begin, **options)
    return float(jnp.abs(end - (MEAN + SPREAD * (begin - signal * MEAN) / top)).max())


# The cosine schedule's first level is clean enough that a solver's last step of order 1, from it to
# the clean sample, costs nothing.
MANY = VariancePreserving(960, "linear", rate=(1e-3, 12.0))


@pytest.mark.parametrize(
    ("process", "options", "order"),
    [
        (MANY, {"eta": 0.0}, 1),
        (MANY, {"solver": "dpm_solver"}, 2),
        (EDM(largest=5.0, smallest=0.01, rho=3.0), {"heun": False}, 1),
        (EDM(largest=5.0, smallest=0.01, rho=3.0), {"heun": True}, 2),
        (Flow(), {}, 1),
    ],
    ids=["ddim", "dpm_solver", "euler", "heun", "flow"],
)
def test_orders_of_deterministic_samplers(process, options, order):
    with jax.enable_x64(True):
        coarse, fine = (carry(process, n, **options) for n in (20, 40))
    assert fine < (0.05 if order == 1 else 0.01)
    assert 2 ** (order - 0.45) < coarse / fine < 2 ** (order + 0.6), (coarse, fine)


def test_churn_keeps_the_law():
    process = EDM(largest=5.0, smallest=0.01, rho=3.0)
    x = process.sample(KEY, exact(process), (20_000, 1), steps=40, churn=10.0)
    np.testing.assert_allclose([x.mean(), x.std()], [MEAN, SPREAD], rtol=0.03)


# ----------------------------------------------------------------------------------------- hooks

PROCESSES = (VariancePreserving(6), EDM(largest=5.0), Flow())


@pytest.mark.parametrize("process", PROCESSES, ids=["vp", "edm", "flow"])
def test_guidance_tilts_the_law(process):
    """Guided by the exact gradient of log E[exp(tilt * clean) | x], each step is that of the tilted
    data N(MEAN + tilt SPREAD^2, SPREAD^2), whose predictions are exact too."""
    tilt = 2.0

    def guide(x, level):
        if isinstance(process, Flow):
            return tilt * posterior(level, 1 - level, x)[1] * jnp.ones_like(x)
        if isinstance(process, EDM):
            return tilt * posterior(1.0, jnp.exp(4 * level), x)[1] * jnp.ones_like(x)
        bar = process.alpha_bars()[jnp.round(level * process.levels).astype(int)]
        return tilt * posterior(jnp.sqrt(bar), jnp.sqrt(1 - bar), x)[1] * jnp.ones_like(x)

    plain, tilted = exact(process), exact(process, MEAN + tilt * SPREAD**2)

    def predict(x, level):
        if not isinstance(process, Flow):
            return tilted(x, level)
        return jnp.where(level[..., None] > 0, tilted(x, level), plain(x, level))

    run = functools.partial(process.sample, random.key(3), shape=(8, 2))
    np.testing.assert_allclose(
        run(predict=plain, hooks=Hooks(guide=guide)), run(predict=predict), atol=2e-5
    )


@pytest.mark.parametrize("process", PROCESSES, ids=["vp", "edm", "flow"])
def test_known_values_stay_and_bounds_hold(process):
    mask = jnp.array([True, False])
    hooks = Hooks(known=lambda x: diffusion.inpaint(x, jnp.float32(0.25), mask), bound=0.1)
    chain = process.sample(KEY, exact(process), (8, 2), hooks=hooks, record=True)
    assert (chain.samples[..., 0] == 0.25).all()
    assert (jnp.abs(chain.samples[-1, :, 1]) <= 0.1 + 1e-6).all()


def test_the_chain_is_what_was_sampled():
    process = VariancePreserving(4)
    sample = functools.partial(process.sample, KEY, exact(process), (50, 2))
    hooks = Hooks(least_scale=0.3, adjust=lambda mean, variance, level: mean + variance + level)
    chain = sample(hooks=hooks, record=True)
    np.testing.assert_array_equal(chain.samples[-1], sample(hooks=hooks))
    np.testing.assert_allclose(chain.level, [1, 0.75, 0.5, 0.25])
    bars = process.alpha_bars()
    for k in range(4):
        now, after = bars[4 - k], bars[3 - k]
        noisy = chain.samples[k]
        clean, _ = posterior(np.sqrt(now), np.sqrt(1 - now), noisy)
        mean, variance = diffusion.denoising_posterior(noisy, clean, now, after)
        scale = np.sqrt(variance) if k == 3 else np.maximum(np.sqrt(variance), 0.3)
        np.testing.assert_allclose(chain.scale[k], scale, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            chain.mean[k], mean + scale**2 + chain.level[k], rtol=1e-4, atol=1e-5
        )
    # Its log-density is the sum of its steps', and the noise is standard normal.
    noise = (chain.samples[1:-1] - chain.mean[:-1]) / chain.scale[:-1, None, None]
    assert abs(float(noise.std()) - 1) < 0.15
    log_prob = losses.denoising_log_prob(
        chain.samples[1:-1], chain.mean[:-1], chain.scale[:-1, None], 0.0
    )
    expected = -0.5 * noise**2 - np.log(chain.scale[:-1, None, None]) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(log_prob, expected.sum(-1), rtol=1e-3, atol=1e-3)


def test_the_best_candidate_is_chosen():
    """Always the first of two is the plain law; the larger clean sample of four is larger."""
    process = VariancePreserving(6)
    sample = functools.partial(process.sample, KEY, exact(process), (4000, 1))

    def largest(candidates, clean):
        best = diffusion.select_best(
            jnp.moveaxis(candidates, 0, -2), jnp.moveaxis(clean[..., 0], 0, -1)
        )
        return best

    plain = sample()
    first = sample(hooks=Hooks(choose=lambda x, clean: x[0], candidates=2))
    np.testing.assert_allclose([first.mean(), first.std()], [plain.mean(), plain.std()], atol=0.03)
    assert sample(hooks=Hooks(choose=largest, candidates=4)).mean() > plain.mean() + 0.3
    one = sample(hooks=Hooks(choose=largest, candidates=1))
    np.testing.assert_array_equal(one, plain)


@pytest.mark.parametrize("process", PROCESSES, ids=["vp", "edm", "flow"])
def test_steps_begin_where_they_are_shifted_to(process):
    """The shift sees the number of the step, and denoises at the level at which it begins."""
    seen = []

    def shift(noisy, denoise, number):
        jax.debug.callback(lambda *x: seen.append(x), number, noisy, denoise(noisy))
        return noisy + 1.0

    options = {"steps": 4, "record": True}
    chain = process.sample(KEY, exact(process), (3, 1), hooks=Hooks(shift=shift), **options)
    jax.effects_barrier()
    assert sorted(int(x[0]) for x in seen) == [0, 1, 2, 3]
    for number, noisy, clean in seen:
        np.testing.assert_allclose(noisy, chain.samples[number], rtol=1e-6)
        level = float(chain.level[number])
        if isinstance(process, Flow):
            expected, _ = posterior(level, 1 - level, noisy)
        elif isinstance(process, EDM):
            expected, _ = posterior(1.0, np.exp(4 * level), noisy)
        else:
            bar = float(process.alpha_bars()[round(level * process.levels)])
            expected, _ = posterior(np.sqrt(bar), np.sqrt(1 - bar), noisy)
        np.testing.assert_allclose(clean, expected, rtol=1e-3, atol=1e-4)
    plain = process.sample(KEY, exact(process), (3, 1), start=chain.samples[0] + 1.0, **options)
    np.testing.assert_allclose(chain.samples[1], plain.samples[1], rtol=1e-5, atol=1e-6)


def test_the_temperature_scales_the_noise_of_each_step():
    process = VariancePreserving(4)
    sample = functools.partial(process.sample, KEY, exact(process), (50, 2), record=True)
    plain, cool = sample(), sample(hooks=Hooks(temperature=0.5))
    np.testing.assert_allclose(cool.scale, 0.5 * plain.scale, rtol=1e-6)
    np.testing.assert_array_equal(cool.samples[0], plain.samples[0])
    moved = [(x.samples[1] - x.mean[0]) for x in (cool, plain)]
    np.testing.assert_allclose(moved[0], 0.5 * moved[1], rtol=1e-3, atol=1e-5)


def test_log_logistic_levels_lie_between_the_ends():
    """Their logarithm has the logistic law, cut off at both ends."""
    process = EDM(0.5, largest=1.0, smallest=0.05, density="log_logistic")
    sigma = np.asarray(process.draw_levels(KEY, (20_000,)), np.float64)
    assert 0.05 <= sigma.min() < 0.055 and 0.95 < sigma.max() <= 1.0
    chance = lambda x: 1 / (1 + np.exp(-(np.log(x) - np.log(0.5)) / 0.5))
    low, high = chance(0.05), chance(1.0)
    for at in (0.1, 0.3, 0.7):
        expected = (chance(at) - low) / (high - low)
        np.testing.assert_allclose((sigma < at).mean(), expected, atol=0.015)
    x = process.add_noise(KEY, jnp.zeros((500, 2)))
    np.testing.assert_allclose(np.exp(4 * x.level).mean(), sigma.mean(), atol=0.05)


def test_few_of_many_levels_are_spaced_evenly():
    process = VariancePreserving(100, "cosine")
    chain = process.sample(KEY, exact(process), (2, 1), steps=4, eta=0.0, record=True)
    np.testing.assert_allclose(chain.level, [1, 0.75, 0.5, 0.25])
    assert process.sample(KEY, exact(process), (2, 1), steps=500, record=True).level.shape == (100,)


def test_a_chain_is_rerun_under_another_network():
    """Rerun with its own network, the last steps have the means and scales that were recorded, also
    the last one with noise; under another the means differ and the scales do not."""
    process, hooks = VariancePreserving(6, "cosine"), Hooks(least_scale=0.2, noisy_end=True)
    options = {"steps": 4, "eta": 0.7, "hooks": hooks}
    chain = process.sample(KEY, exact(process), (5, 2), record=True, **options)
    assert (chain.scale >= 0.2 - 1e-6).all() and (chain.samples[-1] != chain.mean[-1]).all()
    mean, scale = process.rerun(exact(process), chain.samples[-3:], **options)
    np.testing.assert_allclose(mean, chain.mean[-2:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scale, chain.scale[-2:], rtol=1e-6)
    other, same = process.rerun(exact(process, 0.0), chain.samples[-3:], **options)
    assert (jnp.abs(other - mean) > 1e-3).all()
    np.testing.assert_array_equal(same, scale)


def test_one_of_the_candidates_is_drawn_by_a_value():
    """Told to draw the first of several, the sampler has the plain law; the largest is larger. The
    level is that of the candidates."""
    process, levels = VariancePreserving(3), []
    sample = functools.partial(process.sample, KEY, exact(process), (4000, 1))
    first = sample(hooks=Hooks(draw=lambda x, level, key: x[0], candidates=3))
    plain = sample()
    np.testing.assert_allclose([first.mean(), first.std()], [plain.mean(), plain.std()], atol=0.02)

    def largest(candidates, level, key):
        jax.debug.callback(levels.append, level)
        return candidates.max(0)

    assert sample(hooks=Hooks(draw=largest, candidates=4)).mean() > first.mean() + 0.1
    jax.effects_barrier()
    np.testing.assert_allclose(sorted(map(float, levels)), [0, 1 / 3, 2 / 3], rtol=1e-6)


def test_consistency_of_gaussian_data():
    """The exact consistency function of N(MEAN, SPREAD^2) maps neighbors on a path to the same end,
    its samples have the data's law after one step and after several, and a chain is rerun."""
    process = Consistency(smallest=0.002, largest=20.0)

    def predict(x, level):
        sigma = jnp.exp(4 * level)[..., None]
        into = diffusion.edm_preconditioning(sigma[..., 0], process.data_scale)[2][..., None]
        noisy = x / into
        shrink = jnp.sqrt((SPREAD**2 + process.smallest**2) / (SPREAD**2 + sigma**2))
        end = MEAN + shrink * (noisy - MEAN)
        skip = process.data_scale**2 / ((sigma - process.smallest) ** 2 + process.data_scale**2)
        out = process.data_scale * (sigma - process.smallest)
        out = out / jnp.sqrt(sigma**2 + process.data_scale**2)
        return jnp.where(out > 0, (end - skip * noisy) / jnp.where(out > 0, out, 1), 0)

    for steps in (1, 3):
        found = process.sample(KEY, predict, (20_000, 1), steps=steps)
        np.testing.assert_allclose([found.mean(), found.std()], [MEAN, SPREAD], atol=0.02)
    # Neighbors share the noise, so they are on one path only up to the distance of their levels.
    clean = MEAN + SPREAD * jax.random.normal(KEY, (2000, 1))
    first, second, sigma, lower = process.ends(KEY, predict, clean)
    assert (sigma > lower).all() and float(sigma.max()) > 1 > float(lower.min())
    error = np.abs(first - second).mean()
    assert error < 0.1 and error < 0.3 * np.abs(first - clean).mean()
    hooks = Hooks(least_scale=0.1, noisy_end=True)
    chain = process.sample(KEY, predict, (7, 1), steps=3, hooks=hooks, record=True)
    mean, scale = process.rerun(predict, chain.samples, hooks=hooks)
    np.testing.assert_allclose(mean, chain.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(scale, chain.scale)
    assert float(scale[-1]) == np.float32(0.1)
