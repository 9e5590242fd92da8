"""Denoisers: shapes, what their outputs depend on, and the reach of convolutions along time."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.spaces import Box
from jaxrl.core.types import TimeStep
from jaxrl.networks.denoisers import (
    ActionDenoiser,
    LevelFeatures,
    TemporalConvolution,
    TrajectoryDenoiser,
    VectorDenoiser,
)

KEY = random.key(0)


def timestep(batch):
    no = jnp.zeros(batch, bool)
    observation = jax.random.normal(random.key(1), (batch, 3))
    return TimeStep(observation, jnp.zeros(batch), no, no, no)


def test_an_action_denoiser_sees_all_its_inputs():
    network = ActionDenoiser(Box(-1.0, 1.0, (3,)), 2, (8,))
    seen, noisy, level = timestep(4), jax.random.normal(KEY, (4, 2)), jnp.linspace(0.1, 1, 4)
    condition = jnp.eye(4)
    params = network.init(KEY, seen, noisy, level, condition)
    run = lambda *inputs: network.apply(params, *inputs)
    said = run(seen, noisy, level, condition)
    assert said.shape == (4, 2)
    other = jax.tree.map(lambda x: x + 0.1 if x.dtype == jnp.float32 else x, seen)
    for inputs in (
        (other, noisy, level, condition),
        (seen, noisy + 0.1, level, condition),
        (seen, noisy, level - 0.05, condition),
        (seen, noisy, level, 1 - condition),
    ):
        assert (run(*inputs) != said).all()
    # Several actions for each time step are as many calls.
    many = jnp.stack([noisy, noisy + 0.1])
    found = run(seen, many, jnp.stack([level, level]), condition)
    np.testing.assert_allclose(found[0], said, atol=1e-6)
    np.testing.assert_allclose(found[1], run(seen, noisy + 0.1, level, condition), atol=1e-6)
    one_step = ActionDenoiser(Box(-1.0, 1.0, (3,)), 2, (8,))
    assert one_step.apply(one_step.init(KEY, seen, noisy), seen, noisy).shape == (4, 2)


def test_levels_are_told_apart():
    module = LevelFeatures(16)
    level = jnp.linspace(-1, 1, 41)
    found = module.apply(module.init(KEY, level), level)
    assert found.shape == (41, 16)
    distance = np.linalg.norm(found[:, None] - found[None], axis=-1) + 9 * np.eye(41)
    assert distance.min() > 0.05


def test_convolutions_along_time_are_convolutions():
    for dilation in (1, 2):
        module = TemporalConvolution(4, 3, dilation)
        x = jax.random.normal(KEY, (2, 7, 3))
        params = module.init(random.key(2), x)
        weights = params["params"]["Dense_0"]["kernel"].reshape(3, 3, 4)
        plain = nn.Conv(4, (3,), kernel_dilation=dilation, padding="SAME", use_bias=False)
        expected = plain.apply({"params": {"kernel": weights}}, x)
        np.testing.assert_allclose(module.apply(params, x), expected, atol=1e-5)


def test_a_trajectory_denoiser_reaches_far_and_sees_all_its_inputs():
    network = TrajectoryDenoiser(2, 8, blocks=2, kernel=3)
    x, level, condition = jax.random.normal(KEY, (3, 12, 2)), jnp.full(3, 0.5), jnp.ones((3, 4))
    params = network.init(KEY, x, level, condition)
    run = lambda *inputs: network.apply(params, *inputs)
    said = run(x, level, condition)
    assert said.shape == x.shape
    assert (run(x, level + 0.1, condition) != said).all()
    assert (run(x, level, 2 * condition) != said).all()
    # Five convolutions of 3 steps, two of them with a dilation of 2, reach 7 steps.
    changed = run(x.at[:, 0].add(1.0), level, condition) != said
    assert changed[:, :8].any(-1).all() and not changed[:, 8:].any()


def test_a_vector_denoiser_sees_the_level():
    network, level = VectorDenoiser(3, 8, 2), jnp.linspace(-1.0, 1.0, 4)
    noisy = jax.random.normal(KEY, (4, 3))
    params = network.init(KEY, noisy, level)
    said = network.apply(params, noisy, level)
    assert said.shape == (4, 3)
    for inputs in ((noisy + 0.1, level), (noisy, level + 0.05)):
        assert (jnp.abs(network.apply(params, *inputs) - said) > 1e-6).all()
