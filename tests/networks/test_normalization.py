"""Batch renormalization, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.networks.normalization import BatchRenorm

RNG = np.random.default_rng(3)
EPSILON = 1e-3


def test_training_uses_the_batchs_moments_and_acting_the_running_ones():
    layer, batches = BatchRenorm(momentum=0.8, warmup=2), RNG.normal(2, 3, (4, 16, 5))
    state = layer.init(random.key(0), jnp.float32(batches[0]))
    mean, variance = np.zeros(5), np.ones(5)
    for i, x in enumerate(batches.astype(np.float32)):
        y, new = layer.apply(state, x, train=True, mutable="batch_stats")
        deviation = np.sqrt(variance + EPSILON)
        own = np.sqrt(x.var(0) + EPSILON)
        expected = (x - x.mean(0)) / own
        if i >= 2:
            factor = np.clip(own / deviation, 1 / 3, 3)
            expected = expected * factor + np.clip((x.mean(0) - mean) / deviation, -5, 5)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        mean, variance = 0.8 * mean + 0.2 * x.mean(0), 0.8 * variance + 0.2 * x.var(0)
        state = {**state, **new}
        acted = layer.apply(state, x[:1])
        np.testing.assert_allclose(acted, (x[:1] - mean) / np.sqrt(variance + EPSILON), rtol=1e-4)


def test_corrections_are_bounded_and_no_gradient_flows_through_them():
    layer, far = BatchRenorm(warmup=0), jnp.float32(RNG.normal(100, 20, (8, 1)))
    state = layer.init(random.key(0), far)
    of = lambda x: layer.apply(state, x, train=True, mutable="batch_stats")[0]
    standard = (far - far.mean(0)) / np.sqrt(far.var(0) + EPSILON)
    np.testing.assert_allclose(of(far), 3 * standard + 5, rtol=1e-4)
    near = jnp.float32(RNG.normal(0.5, 1.2, (8, 1)))
    slope = jax.grad(lambda x: (of(x) * jnp.arange(8.0)[:, None]).sum())(near)
    np.testing.assert_allclose(
        slope.sum(), 0.0, atol=1e-4
    )  # since a shift of all inputs changes nothing
