"""Orthogonal weights: orthonormal, with Haar distribution, without LAPACK."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import stats

from jaxrl.core import errors, random
from jaxrl.networks import initializers
from jaxrl.networks.dense import dense, hidden_dense


def gram_error(weights, scale):
    """Return the largest entry of (smaller Gram matrix) / scale^2 - I, in float64."""
    matrix = np.asarray(weights, np.float64).reshape(-1, weights.shape[-1]) / scale
    matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    return np.abs(matrix.T @ matrix - np.eye(matrix.shape[1])).max()


def custom_calls(program):
    return re.findall(r'custom_call_target="([^"]*)"', program.as_text())


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (1, 7), (7, 1), (4, 64), (64, 2), (64, 64), (3, 3, 4, 32), (8, 8, 2, 3), (256, 256)],
)
@pytest.mark.parametrize("scale", [1.0, 2**0.5, 0.01])
def test_weights_are_orthogonal(shape, scale):
    weights = initializers.orthogonal(scale)(random.key(0), shape)
    assert weights.shape == shape and weights.dtype == jnp.float32
    assert gram_error(weights, scale) < 1e-5


def test_nearly_dependent_rows_are_orthogonal_too():
    """Draw many square matrices, which are the worst conditioned."""
    keys = jax.random.split(random.key(1), 200)
    weights = jax.vmap(lambda key: initializers.orthogonal()(key, (48, 48)))(keys)
    assert max(gram_error(w, 1.0) for w in weights) < 1e-5


def test_dtype_and_signature_are_those_of_jax_initializers():
    weights = initializers.orthogonal(1.0)(random.key(0), (8, 4), jnp.bfloat16)
    assert weights.dtype == jnp.bfloat16
    assert gram_error(weights.astype(jnp.float32), 1.0) < 0.05
    with pytest.raises(errors.UserError, match=r"need at least two axes, not the shape \(3,\)"):
        initializers.orthogonal()(random.key(0), (3,))
    assert initializers.orthogonal()(random.key(0), (0, 3)).shape == (0, 3)


def test_vmapped_over_keys():
    keys = jax.random.split(random.key(2, "pcg"), 32)
    init = lambda key: initializers.orthogonal(2.0)(key, (24, 16))
    weights = jax.jit(jax.vmap(init))(keys)
    assert weights.shape == (32, 24, 16)
    assert max(gram_error(w, 2.0) for w in weights) < 1e-5
    np.testing.assert_allclose(weights[5], init(keys[5]), atol=1e-5)
    assert np.abs(weights[0] - weights[1]).max() > 0.5


@pytest.mark.parametrize("shape", [(6, 6), (12, 3)])
def test_distribution_is_haar(shape):
    """Entries have mean 0, variance 1/n, the marginal law of a point on the sphere, and symmetric
    signs. Square matrices also have the determinant and trace of Haar's orthogonal matrices (trace
    with mean 0 and variance 1: Diaconis & Shahshahani 1994)."""
    count, n = 4096, max(shape)
    keys = jax.random.split(random.key(3, "pcg"), count)
    weights = jax.jit(jax.vmap(lambda key: initializers.orthogonal()(key, shape)))(keys)
    weights = np.asarray(weights, np.float64)
    assert np.abs(weights.mean(0)).max() < 5 / np.sqrt(n * count)
    variance_error = np.sqrt(3 * (n - 1) / (n + 2) * 2 / 3) / n  # of one squared entry
    assert np.abs((weights**2).mean(0) - 1 / n).max() < 5 * variance_error / np.sqrt(count)
    law = stats.beta((n - 1) / 2, (n - 1) / 2, loc=-1, scale=2)
    for i, j in np.ndindex(shape):
        assert stats.kstest(weights[:, i, j], law.cdf).pvalue > 1e-4
    flat = weights.reshape(count, -1)
    covariance = flat.T @ flat / count
    off_diagonal = covariance[~np.eye(len(covariance), dtype=bool)]
    assert np.abs(off_diagonal).max() < 6 / n / np.sqrt(count)
    if shape[0] == shape[1]:
        traces = np.trace(weights, axis1=1, axis2=2)
        assert abs(traces.mean()) < 5 / np.sqrt(count) and abs(traces.var() - 1) < 0.1
        assert abs(np.sign(np.linalg.det(weights)).mean()) < 5 / np.sqrt(count)


def test_no_lapack_in_a_vmapped_training_program():
    """Initialize and train 32 seeds inside one jitted scan, as a sweep does."""

    def train(key):
        def layers(key):
            first, second = jax.random.split(key)
            init = initializers.orthogonal(2**0.5)
            return init(first, (4, 16)), init(second, (16, 2))

        def step(params, _):
            loss = lambda p: jnp.sum((jnp.tanh(jnp.ones(4) @ p[0]) @ p[1]) ** 2)
            value, gradient = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), value

        return lax.scan(step, layers(key), length=20)[1]

    keys = jax.random.split(random.key(4, "pcg"), 32)
    program = jax.jit(jax.vmap(train)).lower(keys).compile()
    assert custom_calls(program) == []
    losses = np.asarray(program(keys))
    assert losses.shape == (32, 20) and np.isfinite(losses).all()
    assert (losses[:, -1] < losses[:, 0]).all()

    qr = jax.nn.initializers.orthogonal()
    lapack = jax.jit(jax.vmap(lambda key: qr(key, (4, 16)))).lower(keys).compile()
    assert any("lapack" in name for name in custom_calls(lapack))  # so the search above can find it


def test_lecun_has_the_variance_of_its_inputs():
    weights = initializers.initializer("lecun", 7.0)(random.key(0), (64, 512))
    assert np.var(weights) == pytest.approx(1 / 64, rel=0.03)


def test_initializers_by_name():
    weights = initializers.initializer("orthogonal", 0.5)(random.key(0), (8, 8))
    assert gram_error(weights, 0.5) < 1e-5
    with pytest.raises(errors.UserError, match="'lecum'; did you mean 'lecun'"):
        initializers.initializer("lecum", 1.0)


def test_runs_that_are_vmapped_draw_one_at_a_time():
    """Batches of LAPACK's QR never returned, in programs with several."""
    shapes = [(64, 64), (32, 96), (32, 32), (64, 32)]
    draw = lambda key: [initializers.orthogonal_by_qr(key, shape) for shape in shapes]
    keys = jax.random.split(random.key(0), 3)
    program = jax.jit(jax.vmap(draw)).lower(keys).compile()
    calls = [line for line in program.as_text().splitlines() if "lapack" in line]
    assert calls and not any("f32[3," in line for line in calls)
    for number, drawn in enumerate(zip(*program(keys), strict=True)):
        for found, shape in zip(drawn, shapes, strict=True):
            expected = jax.nn.initializers.orthogonal()(keys[number], shape)
            np.testing.assert_array_equal(found, expected)


def test_weights_and_biases_as_pytorchs_are_uniform_by_the_number_of_inputs():
    """A layer's kernel and bias are uniform between -+1 / sqrt(inputs)."""
    x = jnp.ones((2, 400))
    for make in (dense, hidden_dense):
        layer = make(300, initializers.initializer("torch", 5.0))
        params = layer.init(random.key(0), x)["params"]
        assert set(params) == {"kernel", "bias"}
        for values in params.values():
            assert stats.kstest(np.ravel(values) * 20, "uniform", (-1, 2)).pvalue > 1e-3
        out = layer.apply({"params": params}, x)
        expected = np.asarray(params["kernel"], np.float64).sum(0) + np.asarray(params["bias"])
        np.testing.assert_allclose(out[0], expected, atol=1e-4)


def test_other_layers_begin_with_biases_of_zero():
    for name in ("lecun", "orthogonal"):
        params = dense(3, initializers.initializer(name, 1.0)).init(random.key(0), jnp.ones((1, 4)))
        assert (params["params"]["bias"] == 0).all()
