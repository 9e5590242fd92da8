"""Policy-guided diffusion: the policy's gradient, exact laws of guided Gaussians, and the product
law that guidance by the exact score has."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import diffusion, envs
from jaxrl.algorithms.diffusion import pgd
from jaxrl.algorithms.diffusion.shared.experience import EXPERIENCE, Layout
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import TimeStep
from jaxrl.diffusion import EDM, Hooks
from jaxrl.kit.normalization import Moments
from tests.algorithms.diffusion import bandit, gaussians
from tests.kit.stub import stub

STEPS = 24
# Observation, action and reward; small actions, so that none is clipped.
SCALE = Moments(jnp.array([0.3, 0.02, 0.0]), jnp.array([4.0, 0.01, 1.0]), jnp.float32(1))
DEVIATION = np.sqrt([4.0, 0.01, 1.0])
RNG = np.random.default_rng(1)
ROOT = 0.5 * np.eye(5) + 0.3 * RNG.normal(size=(5, 5))
MEAN, COV = 0.3 * RNG.normal(size=5), ROOT @ ROOT.T
GAIN, OFFSET = 0.02, 0.05  # of the policy, on standardized observations


def policy(timestep):
    return GAIN * timestep.observation + OFFSET


def sample_guided(n=4000, **changes):
    """Guided transitions of the exact model of N(MEAN, COV): standardized observations and actions
    [n, 2]."""
    settings = {"generator.horizon": 1, "generator.steps": STEPS} | changes
    hyper = {k: settings.pop(k) for k in ("guidance", "bump") if k in settings}
    config = replace(pgd.Config(), settings)
    net = stub(
        denoiser=gaussians.denoiser(MEAN, COV),
        actor=policy,
        extra=SCALE,
        hyper={"guidance": 1.0, "bump": 0.3, "exploration_noise": 0.0} | hyper,
    )
    recipe = pgd.recipe(bandit.ENV, Static(config))
    no = jnp.zeros(n, bool)
    seen = TimeStep(jnp.zeros((n, 1)), jnp.zeros(n), no, no, no)
    run = jax.jit(lambda key: recipe.act(net, seen, (), key, False)[2][EXPERIENCE])
    x = run(random.key(0))
    both = np.stack([x.observation[:, 0, 0], x.action[:, 0, 0]], -1)
    return (both - np.asarray(SCALE.mean[:2])) / DEVIATION[:2]


def affine_law(strength, at, bump=0.3):
    """Mean and covariance of samples with the gradient as it is, by recursion over the steps."""
    process = EDM(data_scale=1.0)
    sigma = gaussians.denoising_steps(process, STEPS)
    mean, cov = -MEAN, sigma[0] ** 2 * np.eye(5)  # of x less the data's mean
    # The gradient with respect to the action: d (g s + o - (m + d a)), at a point M y + MEAN.
    d, m = DEVIATION[1], 0.02
    row = np.zeros((5, 5))
    row[1, 0], row[1, 1] = d * GAIN, -(d**2)
    constant = np.zeros(5)
    constant[1] = d * (OFFSET - m)
    constant = constant + row @ MEAN
    for i in range(STEPS):
        weight = 1 - i / STEPS + bump * np.sin(np.pi * (i + 1) / STEPS)
        weight = strength * weight if i < STEPS - 1 else 0.0
        point = gaussians.posterior_factor(COV, sigma[i]) if at == "denoised" else np.eye(5)
        shift = np.eye(5) + weight * row @ point
        step = gaussians.heun_map(COV, sigma[i], sigma[i + 1])
        whole = step @ shift
        mean = whole @ mean + weight * step @ constant
        cov = whole @ cov @ whole.T
    return (mean + MEAN)[:2], cov[:2, :2]


@pytest.mark.parametrize("at", ["denoised", "noisy"])
def test_guided_samples_have_the_law_of_their_recursion(at):
    n, strength = 4000, 20.0
    x = sample_guided(n=n, guidance=strength, at=at, normalize=False)
    mean, cov = affine_law(strength, at)
    np.testing.assert_allclose(x.mean(0), mean, atol=5 * np.sqrt(cov.max() / n))
    np.testing.assert_allclose(np.cov(x.T), cov, atol=6 * cov.max() / np.sqrt(n))
    plain, _ = affine_law(0.0, at)
    np.testing.assert_allclose(plain, MEAN[:2], atol=0.02)
    assert np.abs(mean - plain).max() > 5 * np.sqrt(cov.max() / n)


def test_normalized_guidance_moves_actions_toward_the_policy():
    """Farther with more strength; none leaves the law of the data."""
    distance = []
    for strength in (0.0, 0.03, 0.1):
        x = sample_guided(guidance=strength)
        action = 0.02 + DEVIATION[1] * x[:, 1]
        distance.append(np.abs(action - GAIN * x[:, 0] - OFFSET).mean())
    assert distance[0] > 1.1 * distance[1] > 1.2 * distance[2]
    x = sample_guided(guidance=0.0)
    np.testing.assert_allclose(x.mean(0), MEAN[:2], atol=0.06)
    np.testing.assert_allclose(np.cov(x.T), COV[:2, :2], atol=0.08)


def test_the_gradient_is_that_of_the_policys_log_probability():
    """Derivatives are with respect to standardized actions, of a log-probability in half-widths."""
    env = envs.make("pendulum")
    layout = Layout(env, 3)
    scale = Moments(*(jnp.asarray(RNG.uniform(0.5, 1, 5), jnp.float32) for _ in range(2)), 1.0)
    samples = jnp.asarray(RNG.normal(size=layout.shape(4)), jnp.float32)
    actor = lambda timestep: 0.3 * timestep.observation[:, :1]
    net = stub(actor=actor, extra=scale)

    def log_prob(action):
        seen = jnp.clip(samples[:, :-1, :3], -10, 10)
        own = (scale.mean[3] + scale.deviation[3] * action) * 2
        return -0.5 * jnp.square((own - 0.3 * seen[..., :1]) / 2).sum()

    expected = jax.grad(log_prob)(samples[:, :-1, 3:4])
    np.testing.assert_allclose(pgd.action_score(net, env, layout, samples), expected, rtol=1e-4)


def test_guidance_by_the_exact_score_gives_the_product_law():
    """p(a) pi(a)^w of Gaussians: the shift before each step is then w sigma (sigma - next) times
    the score of E[pi(a)^w | x], and samples have the product's mean and variance."""
    mean, variance, aim, wide, w = 0.4, 0.25, -0.5, 0.5, 2.0
    process, steps = EDM(data_scale=1.0, largest=20.0), 400
    sigma = jnp.asarray(gaussians.denoising_steps(process, steps), jnp.float32)

    def shift(noisy, denoise, number):
        now, after = sigma[number], sigma[number + 1]
        clean = denoise(noisy)
        left = variance * now**2 / (variance + now**2)
        slope = variance / (variance + now**2)
        score = (aim - clean) / (wide / w + left) * slope
        return noisy + now * (now - after) * score

    predict = gaussians.denoiser([mean], [[variance]])
    run = functools.partial(process.sample, shape=(20_000, 1), steps=steps)
    x = run(random.key(0), predict, hooks=Hooks(shift=shift))
    precision = 1 / variance + w / wide
    center = (mean / variance + w * aim / wide) / precision
    np.testing.assert_allclose([x.mean(), x.var()], [center, 1 / precision], atol=0.01)
    plain = run(random.key(0), predict)
    np.testing.assert_allclose([plain.mean(), plain.var()], [mean, variance], atol=0.02)
    assert diffusion.policy_guidance_weight(jnp.array(steps - 1), steps) == 0
