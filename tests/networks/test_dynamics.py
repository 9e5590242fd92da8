"""Dynamics models: bounded variances, and samples of the next step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.networks.dynamics import LOG_VARIANCE, Dynamics, Prediction, draw_next
from tests.networks.pendulum import ENV, make_timestep


@pytest.mark.slow
def test_members_differ_and_their_variances_are_bounded():
    model = Dynamics(ENV.observation_space, ENV.action_space, (8,), members=3)
    timestep, action = make_timestep(np.ones((2, 3)) * 50, [False, False]), jnp.full((2, 1), 2.0)
    params = model.init(random.key(0), timestep, action)
    found = model.apply(params, timestep, action)
    assert found.change.shape == found.log_variance.shape == (3, 2, 3)
    assert found.ended.shape == (3, 2)
    assert (found.change[0] != found.change[1]).all()
    huge = jax.tree.map(lambda x: 100 * x, params)
    low, high = LOG_VARIANCE
    variance = model.apply(huge, timestep, action).log_variance
    assert variance.min() >= low and variance.max() <= high + 0.01 and variance.ptp() > 1


@pytest.mark.slow
def test_each_step_is_drawn_by_a_random_member():
    count, means = 6000, np.array([-3.0, 1.0])
    prediction = Prediction(
        jnp.broadcast_to(jnp.float32(means)[:, None, None], (2, count, 3)),
        jnp.full((2, count, 3), 2 * np.log(0.1), jnp.float32),
        jnp.broadcast_to(jnp.float32([[5.0], [-5.0]]), (2, count)),
    )
    start = make_timestep(np.full((count, 3), 7.0), np.zeros(count, bool))
    found = draw_next(prediction, start, random.key(0))
    first = np.asarray(found.terminated)  # the first member predicts that it ends
    assert 0.45 < first.mean() < 0.55
    change = np.asarray(found.observation) - 7.0
    np.testing.assert_allclose(change[first].mean(0), -3.0, atol=0.02)
    np.testing.assert_allclose(change[~first].mean(0), 1.0, atol=0.02)
    np.testing.assert_allclose(change[first].std(0), 0.1, rtol=0.1)
    assert found.reward is start.reward
