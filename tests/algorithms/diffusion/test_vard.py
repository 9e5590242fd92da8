"""VARD: the value's regression, and the step-wise objective of the denoiser, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.diffusion import vard
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from tests.algorithms.diffusion import mixtures
from tests.kit import stub

STEPS, N = 3, 5
RECIPE = vard.recipe(mixtures.ENV, Static(replace(vard.Config(), {"hidden": (8,), "steps": STEPS})))
HYPER = {"beta": 0.3, "last_scale": 0.2}


def network(slope):
    return lambda timestep, noisy, level: slope * noisy + 0.1 * level[..., None]


def value(timestep, noisy, level):
    return (2 * noisy[..., :1] - noisy[..., 1:]) + 3 * level[..., None]


def batch():
    chain = np.random.default_rng(0).normal(size=(N, STEPS + 1, 2)).astype(np.float32)
    return stub.transitions(N, actions=0, chain=jnp.asarray(chain))


def net_of(slope):
    parts = {"denoiser": network(slope), "base": network(0.5), "value": value}
    return stub.stub(hyper=HYPER, key=lambda name="": random.key(3), **parts)


def test_the_value_is_regressed_at_every_level():
    x = batch()
    found = stub.losses_of(RECIPE)["value_loss"](net_of(0.4), x)
    chain = np.asarray(x.extras["chain"])
    level = np.array([1, 2 / 3, 1 / 3, 0])
    values = 2 * chain[..., 0] - chain[..., 1] + 3 * level
    error = 0.5 * np.square(values - np.asarray(x.reward)[:, None])
    np.testing.assert_allclose(found, error.mean(1), rtol=1e-4)


def test_each_step_ascends_the_value_of_its_output_near_the_base():
    x = batch()
    descend = stub.losses_of(RECIPE)["denoiser_loss"]
    output = descend(net_of(0.4), x)
    process = vard.VariancePreserving(STEPS, "cosine")
    hooks = vard.Hooks(bound=1.0, least_scale=0.2, noisy_end=True)
    chain = jnp.moveaxis(x.extras["chain"], 1, 0)
    run = lambda slope: process.rerun(lambda *g: network(slope)(None, *g), chain, hooks=hooks)
    (mean, scale), (base_mean, _) = run(0.4), run(0.5)
    noise = jax.random.normal(random.key(3), mean.shape)
    after = np.asarray(mean + scale[:, None, None] * noise)
    values = 2 * after[..., 0] - after[..., 1] + 3 * np.array([[2 / 3], [1 / 3], [0]])
    apart = np.square((mean - base_mean) / scale[:, None, None]).sum(-1) / 2
    np.testing.assert_allclose(output.value, (0.3 * apart - values).mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(output.metrics["divergence"], apart.sum(0), rtol=1e-3)
    same = descend(net_of(0.5), x)
    np.testing.assert_allclose(same.metrics["divergence"], 0, atol=1e-6)


def test_what_is_recorded_is_the_chain_of_the_action():
    net = net_of(0.4)
    for greedy in (False, True):
        action, _, extras = RECIPE.act(net, mixtures.first_steps(4), (), random.key(0), greedy)
        assert extras["chain"].shape == (4, STEPS + 1, 2)
        np.testing.assert_array_equal(action, np.clip(extras["chain"][:, -1], -1, 1))


def test_every_gradient_step_has_noise_of_its_own():
    """A net's keys differ between updates, and an update descends each loss once."""
    descended = []

    class Net:
        def descend(self, loss, batch):
            descended.append(loss.name)
            return self

    RECIPE.update(Net(), None)
    assert descended == ["value_loss", "denoiser_loss"]
    assert vard.vard.updates(replace(vard.Config(), {"updates": 3})) == 3
