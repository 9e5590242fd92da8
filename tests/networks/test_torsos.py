"""The two forms of a convolution against each other and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.networks.torsos import BLOCK, Convolution


@pytest.mark.parametrize("batch", [3, 5 * BLOCK])  # all images at once; in blocks
def test_both_forms_of_a_convolution_agree_with_each_other_and_with_numpy(batch):
    x = jax.random.uniform(random.key(0), (2, batch, 6, 5, 4)) < 0.3  # [T, B, H, W, C]
    of = lambda form: Convolution((3, 2), "tanh", form=form)
    params = of("direct").init(random.key(1), x)
    params = jax.tree.map(lambda p: p + 0.1, params)  # biases too
    assert jax.tree.structure(params) == jax.tree.structure(of("slices").init(random.key(1), x))

    def both(form):
        loss = lambda params, x: jnp.sin(of(form).apply(params, x)).sum()
        return of(form).apply(params, x), jax.grad(loss, (0, 1))(params, x.astype(jnp.float32))

    direct, sliced = (jax.jit(both, static_argnums=0)(form) for form in ("direct", "slices"))
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, direct, sliced)

    y = np.asarray(x, np.float64)
    for name in ("Conv_0", "Conv_1"):
        p = params["params"][name]
        windows = np.lib.stride_tricks.sliding_window_view(y, (3, 3), (2, 3))
        y = np.tanh(np.einsum("tbhwcij,ijcf->tbhwf", windows, p["kernel"]) + p["bias"])
    close(direct[0], y.reshape(2, batch, -1))
