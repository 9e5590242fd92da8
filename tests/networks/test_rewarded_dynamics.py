"""Models of dynamics and reward: shapes, bounds, and who draws a step."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.networks.dynamics import LOG_VARIANCE
from jaxrl.networks.rewarded_dynamics import RewardedDynamics, StepPrediction, draw_step
from tests.networks.pendulum import ENV, make_timestep


def test_members_predict_change_and_reward_and_their_variances_are_bounded():
    model = RewardedDynamics(ENV.observation_space, ENV.action_space, (8,), members=3)
    timestep, action = make_timestep(np.ones((2, 3)) * 50, [False, False]), jnp.full((2, 1), 2.0)
    params = model.init(random.key(0), timestep, action)
    found = model.apply(params, timestep, action)
    assert found.mean.shape == found.log_variance.shape == (3, 2, 4)
    assert found.ended.shape == (3, 2)
    assert (found.mean[0] != found.mean[1]).all()
    variance = model.apply(jax.tree.map(lambda x: 100 * x, params), timestep, action).log_variance
    assert variance.min() >= LOG_VARIANCE[0] and variance.max() <= LOG_VARIANCE[1] + 0.01
    mean, scale = found.members_last()
    assert mean.shape == (2, 4, 3)
    np.testing.assert_array_equal(mean[1, :, 2], found.mean[2, 1])
    np.testing.assert_allclose(scale**2, np.moveaxis(np.exp(found.log_variance), 0, -1), rtol=1e-5)


def test_each_step_is_drawn_by_a_random_elite():
    """Three members, of which the second is no elite; only the third says that the task ends."""
    count, means = 6000, np.array([-3.0, 100.0, 1.0])
    prediction = StepPrediction(
        jnp.broadcast_to(jnp.float32(means)[:, None, None], (3, count, 4)),
        jnp.full((3, count, 4), 2 * np.log(0.1), jnp.float32),
        jnp.broadcast_to(jnp.float32([[-5.0], [5.0], [5.0]]), (3, count)),
    )
    found, ended = map(np.asarray, draw_step(prediction, jnp.array([2, 0]), random.key(0)))
    assert 0.47 < ended.mean() < 0.53
    np.testing.assert_allclose(found[~ended].mean(0), -3.0, atol=0.02)
    np.testing.assert_allclose(found[ended].mean(0), 1.0, atol=0.02)
    np.testing.assert_allclose(found[ended].std(0), 0.1, rtol=0.1)
