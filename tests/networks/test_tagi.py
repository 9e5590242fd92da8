"""Networks with normal weights, against samples and the exact Gaussian conditional."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks import tagi
from jaxrl.networks.tagi import Layer, Normal

RNG = np.random.default_rng(0)
INPUTS, OUTPUTS = 3, 2


def normal(*shape):
    return Normal(RNG.normal(size=shape), RNG.uniform(0.1, 1.0, shape))


def layer(inputs=INPUTS, outputs=OUTPUTS):
    return Layer(normal(inputs, outputs), normal(outputs))


def draw(x, count):
    return RNG.normal(x.mean, np.sqrt(x.variance), (count, *x.mean.shape))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_moments_of_a_layer_are_those_of_samples():
    one, x = layer(), normal(INPUTS)
    w, b, units = (draw(y, 400_000) for y in (one.weight, one.bias, x))
    samples = np.einsum("ni,nio->no", units, w) + b
    found = tagi.affine(one, x)
    np.testing.assert_allclose(found.mean, samples.mean(0), atol=0.02)
    np.testing.assert_allclose(found.variance, samples.var(0), rtol=0.01)


def conditional(mean, covariance, row, observed, noise):
    """Condition a normal vector on `row` times it, observed with noise of variance `noise`."""
    gain = covariance @ row / (row @ covariance @ row + noise)
    return mean + gain * (observed - row @ mean), covariance - np.outer(gain, row @ covariance)


def test_one_observation_of_a_single_layer_conditions_exactly():
    """One of two outputs is observed; the weights of the other stay as they are."""
    one, x = layer(), RNG.normal(size=INPUTS)
    seen = Normal(np.array([[0.0, 1.7]]), np.full((1, OUTPUTS), 0.3))
    (new,) = tagi.infer((one,), x[None], seen, np.array([[False, True]]))
    weights = lambda y, j: (
        np.append(y.weight.mean[:, j], y.bias.mean[j]),
        np.append(y.weight.variance[:, j], y.bias.variance[j]),
    )
    mean, variance = weights(one, 1)
    mean, covariance = conditional(mean, np.diag(variance), np.append(x, 1), 1.7, 0.3)
    np.testing.assert_allclose(weights(new, 1), (mean, np.diag(covariance)), rtol=1e-12)
    np.testing.assert_array_equal(weights(new, 0), weights(one, 0))


def test_layers_below_are_conditioned_as_if_the_net_were_linear_where_it_is():
    """The result is the mean and diagonal of the exact conditional of the first layer's weights,
    given their covariance with the output, which cuTAGI's backward pass sums up."""
    below, above = layer(INPUTS, 4), layer(4, 1)
    x = RNG.normal(size=INPUTS)
    new, _ = tagi.infer(
        (below, above), x[None], Normal(np.array([[2.0]]), np.array([[0.3]])), np.array([[True]])
    )
    hidden, out = tagi.forward((below, above), x[None])
    passes = np.asarray(hidden.mean[0] > 0)
    assert passes.any() and not passes.all()
    # cov(w_ij, out) = var(w_ij) x_i E[w'_j] if the rectifier of unit j passes
    to_output = below.weight.variance * x[:, None] * (passes * above.weight.mean[:, 0])
    total = np.asarray(out.variance)[0, 0] + 0.3
    gain = to_output / total
    mean = below.weight.mean + gain * (2.0 - np.asarray(out.mean)[0, 0])
    np.testing.assert_allclose(new.weight.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(
        new.weight.variance, below.weight.variance - gain * to_output, rtol=1e-12
    )


def test_a_batch_sums_up_and_no_weight_moves_further_than_its_bound():
    one, x = layer(INPUTS, 1), RNG.normal(size=(5, INPUTS))
    seen, mask = Normal(RNG.normal(size=(5, 1)), np.full((5, 1), 1e-3)), np.ones((5, 1), bool)
    each = [
        tagi.infer((one,), x[i : i + 1], Normal(seen.mean[i : i + 1], seen.variance[:1]), mask[:1])
        for i in range(5)
    ]
    changes = sum(new.weight.mean - one.weight.mean for (new,) in each)
    (free,) = tagi.infer((one,), x, seen, mask)
    np.testing.assert_allclose(free.weight.mean - one.weight.mean, changes, rtol=1e-9)
    (bound,) = tagi.infer((one,), x, seen, mask, cap=2.0)
    most = np.sqrt(one.weight.variance) / 2
    expected = one.weight.mean + np.clip(changes, -most, most)
    np.testing.assert_allclose(bound.weight.mean, expected, rtol=1e-9)
    assert (np.abs(changes) > most).any() and (np.asarray(bound.weight.variance) > 0).all()


def test_what_is_inferred_of_a_line_covers_it():
    """The posterior is calibrated: 95 % intervals of a linear layer that saw 200 noisy points, one
    by one, contain about 95 % of new points, though it ignores correlations of the weights."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, INPUTS))
    y = x @ [1.0, -2.0, 0.5] + 0.3 + 0.5 * rng.normal(size=400)
    start = (tagi.prior(jax.random.key(0), INPUTS, 1),)
    yes, noise = np.ones((1, 1), bool), np.full((1, 1), 0.25)

    def step(layers, point):
        x, y = point
        return tagi.infer(layers, x[None], Normal(y[None, None], noise), yes), None

    layers, _ = jax.lax.scan(step, start, (jnp.asarray(x[:200]), jnp.asarray(y[:200])))
    output = tagi.forward(layers, jnp.asarray(x[200:]))[-1]
    error = np.abs(output.mean[:, 0] - y[200:])
    inside = (error < 1.96 * np.sqrt(output.variance[:, 0] + 0.25)).mean()
    assert 0.9 <= inside <= 0.98
