"""ROCM: divergences of Gaussians against integrals, and the gradient through the sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.diffusion import rocm
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from tests.algorithms.diffusion import mixtures
from tests.kit import stub

CONFIG = replace(rocm.Config(), {"hidden": (8,), "steps": 2})
HYPER = {"beta": 0.3, "last_scale": 0.05}


@pytest.mark.parametrize("name", rocm.DIVERGENCES)
def test_divergences_are_the_integrals(name):
    apart, scale = np.array([0.3, -0.2]), 0.5
    x = np.linspace(-6, 6, 4001)
    pdf = lambda mean: np.exp(-0.5 * ((x - mean) / scale) ** 2) / scale / np.sqrt(2 * np.pi)
    integral = lambda y: np.sum((y[1:] + y[:-1]) / 2 * np.diff(x))
    p = [pdf(a) for a in apart]
    q = pdf(0.0)
    score = lambda mean: -(x - mean) / scale**2
    expected = {
        "kl": sum(integral(a * np.log(a / q)) for a in p),
        "hellinger": 1 - np.prod([integral(np.sqrt(a * q)) for a in p]),
        "fisher": sum(
            integral(a * (score(m) - score(0)) ** 2) for a, m in zip(p, apart, strict=True)
        ),
    }[name]
    found = rocm.DIVERGENCES[name](jnp.float32(apart), jnp.float32(scale))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def loss_of(shift, divergence="kl", hyper=HYPER):
    recipe = rocm.recipe(mixtures.ENV, Static(replace(CONFIG, {"divergence": divergence})))
    plain = lambda t, noisy, level: 0.1 * noisy
    moved = lambda t, noisy, level: plain(t, noisy, level) + shift * jnp.array([1.0, 0.0])
    net = stub.stub(denoiser=moved, base=plain, hyper=hyper, key=lambda name="": random.key(3))
    x = stub.transitions(64, actions=0)
    return stub.losses_of(recipe)["denoiser_loss"](net, x)


def test_a_model_like_the_base_pays_no_divergence_and_rises_along_the_reward():
    output = loss_of(0.0)
    np.testing.assert_allclose(output.metrics["divergence"], 0, atol=1e-6)
    np.testing.assert_allclose(output.value, -output.metrics["sampled_reward"], rtol=1e-5)
    slope = jax.grad(lambda shift: loss_of(shift).value.mean())(0.0)
    further = jax.grad(lambda shift: loss_of(shift).value.mean())(0.5)
    assert slope < -0.05 < further  # the divergence holds back what is far from the base


@pytest.mark.parametrize("divergence", rocm.DIVERGENCES)
def test_the_gradient_is_that_of_the_whole_objective(divergence):
    """Against a difference quotient: the path's own dependence on the weights counts too."""
    total = lambda shift: loss_of(shift, divergence).value.mean()
    step = 1e-2
    quotient = (total(0.05 + step) - total(0.05 - step)) / 2 / step
    np.testing.assert_allclose(jax.grad(total)(0.05), quotient, rtol=0.02)
