"""RLCM: the likelihoods of a consistency model's steps, its clipped surrogate, and advantages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.diffusion import rlcm
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from tests.algorithms.diffusion import mixtures
from tests.kit import stub

STEPS = 3
CONFIG = replace(rlcm.Config(), {"hidden": (8,), "steps": STEPS, "num_envs": 8})
RECIPE = rlcm.recipe(mixtures.ENV, Static(CONFIG))
HYPER = {"clip": 0.1, "last_scale": 0.05}


def network(slope):
    return lambda timestep, noisy, level: slope * noisy + 0.1 * level[..., None]


def act(slope, greedy, n=8):
    net = stub.stub(denoiser=network(slope), hyper=HYPER)
    return RECIPE.act(net, mixtures.first_steps(n), (), random.key(0), greedy)


def test_likelihoods_are_recorded_as_they_were_sampled():
    """All steps are Gaussians about the predicted clean sample, the last one too."""
    action, _, extras = act(0.2, False, 2000)
    chain = jnp.moveaxis(extras["chain"], 1, 0)
    np.testing.assert_array_equal(action, np.clip(chain[-1], -1, 1))
    process = rlcm.Consistency()
    predict = lambda noisy, level: network(0.2)(None, noisy, level)
    net = stub.stub(hyper=HYPER)
    mean, scale = process.rerun(predict, chain, hooks=rlcm.hooks_of(net, False))
    z = (chain[1:] - mean) / scale[:, None, None]
    np.testing.assert_allclose(z.std((1, 2)), 1, atol=0.05)
    density = -0.5 * z**2 - np.log(scale[:, None, None]) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(extras["log_prob"].T, density.mean(-1), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(float(scale[-1]), 0.05)
    greedy = act(0.2, True)
    last = jnp.moveaxis(greedy[2]["chain"], 1, 0)
    exact, _ = process.rerun(predict, last, hooks=rlcm.hooks_of(net, True))
    np.testing.assert_allclose(last[-1], exact[-1], atol=1e-5)


def test_the_loss_against_numpy():
    n = 64
    _, _, extras = act(0.2, False, n)
    advantage = np.random.default_rng(0).normal(size=n).astype(np.float32)
    x = rlcm.Sample(mixtures.first_steps(n), extras["chain"], extras["log_prob"], advantage)
    descend = stub.losses_of(RECIPE)["denoiser_loss"]
    same = descend(stub.stub(denoiser=network(0.2), hyper=HYPER), x)
    np.testing.assert_allclose(same.value, -advantage, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(same.drift, 0, atol=1e-5)
    other = stub.stub(denoiser=network(0.25), hyper=HYPER)
    output = descend(other, x)
    chain = jnp.moveaxis(x.chain, 1, 0)
    predict = lambda noisy, level: network(0.25)(None, noisy, level)
    moments = rlcm.Consistency().rerun(predict, chain, hooks=rlcm.hooks_of(other, False))
    ratio = np.exp(np.asarray(rlcm.step_log_probs(chain, *moments)) - x.log_prob.T)
    clipped = np.clip(ratio, 0.9, 1.1)
    expected = -np.minimum(ratio * advantage, clipped * advantage).mean(0)
    np.testing.assert_allclose(output.value, expected, rtol=1e-3, atol=1e-4)
    assert (clipped * advantage < ratio * advantage - 0.01).any()  # so that the clip is seen


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="do not divide into minibatches=3"):
        rlcm.rlcm.agent(mixtures.ENV, replace(CONFIG, {"minibatches": 3}))


def test_the_gradient_follows_the_reward():
    """The surrogate's slope in a shift of all samples has the sign of the advantage's covariance
    with that shift."""
    _, _, extras = act(0.2, False, 4000)
    chain = extras["chain"]
    reward = chain[:, -1, 0]
    x = rlcm.Sample(mixtures.first_steps(4000), chain, extras["log_prob"], reward - reward.mean())

    def surrogate(shift):
        moved = lambda t, noisy, level: network(0.2)(t, noisy, level) + shift * jnp.array([1.0, 0])
        net = stub.stub(denoiser=moved, hyper=HYPER)
        return stub.losses_of(RECIPE)["denoiser_loss"](net, x).value.mean()

    assert jax.grad(surrogate)(0.0) < -1e-3
