"""Exactness of `sin_cos` and its derivative to the last digits of float32."""

import jax
import numpy as np

from jaxrl.envs.trigonometry import sin_cos


def test_values_and_derivatives():
    angle = np.linspace(-1000, 1000, 200_001, dtype=np.float32)
    exact = angle.astype(np.float64)
    both = jax.jit(lambda x: jax.jvp(sin_cos, (x,), (jax.numpy.ones_like(x),)))
    (sin, cos), (sin_slope, cos_slope) = both(angle)
    np.testing.assert_allclose(sin, np.sin(exact), rtol=0, atol=2e-7)
    np.testing.assert_allclose(cos, np.cos(exact), rtol=0, atol=2e-7)
    np.testing.assert_allclose(sin_slope, np.cos(exact), rtol=0, atol=2e-6)
    np.testing.assert_allclose(cos_slope, -np.sin(exact), rtol=0, atol=2e-6)
