"""The loss of a dynamics model against its likelihood, written out in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.offline.shared.dynamics_loss import dynamics_loss
from jaxrl.networks.dynamics import Prediction
from tests.networks.pendulum import ENV, make_timestep


@pytest.mark.slow
def test_the_loss_is_the_likelihood_of_what_came_next():
    rng = np.random.default_rng(0)
    change, log_variance = rng.normal(size=(2, 3, 4, 3))
    ended = rng.normal(size=(3, 4))
    before, after = rng.normal(size=(2, 4, 3))
    done = np.array([True, False, False, True])
    prediction = Prediction(*map(jnp.float32, (change, log_variance, ended)))
    found = dynamics_loss(
        prediction, ENV.observation_space, make_timestep(before, ~done), make_timestep(after, done)
    )
    error = (after - before - change) ** 2
    nll = 0.5 * (log_variance + error * np.exp(-log_variance)).sum(-1)
    probability = 1 / (1 + np.exp(-ended))
    expected = nll - np.log(np.where(done, probability, 1 - probability))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
