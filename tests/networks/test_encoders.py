import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.core.types import TimeStep
from jaxrl.networks import encoders

NO = jnp.bool_(False)


def step(observation, goal=None):
    return TimeStep(observation, jnp.float32(0), NO, NO, NO, goal=goal)


def test_boxes_are_flattened_behind_any_batch_axes():
    space = Box(0, 254, (2, 3), jnp.uint8)
    x = jnp.arange(24, dtype=jnp.uint8).reshape(4, 1, 2, 3)
    features = encoders.flatten(space, x)
    assert features.dtype == jnp.float32
    np.testing.assert_array_equal(features, np.arange(24).reshape(4, 1, 6))
    assert encoders.flatten(Box(0.0, 1.0, ()), jnp.ones((5, 2))).shape == (5, 2, 1)


def test_integers_are_one_hot():
    np.testing.assert_array_equal(
        encoders.flatten(Discrete(3), jnp.array([2, 0])), [[0, 0, 1], [1, 0, 0]]
    )
    features = encoders.flatten(MultiDiscrete((2, 3)), jnp.array([[1, 0], [0, 2]]))
    np.testing.assert_array_equal(features, [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]])


def test_parts_follow_one_another_in_the_order_of_the_tree():
    space = {"b": Discrete(2), "a": (Box(0.0, 9.0, (2,)), Box(0.0, 9.0, ()))}
    observation = {"b": jnp.array([1]), "a": (jnp.array([[3.0, 4.0]]), jnp.array([5.0]))}
    np.testing.assert_array_equal(encoders.flatten(space, observation), [[3, 4, 5, 0, 1]])


def test_the_goal_follows_the_observation():
    space = Box(0.0, 9.0, (2,))
    x = jnp.ones((4, 3, 2))
    assert encoders.features(space, step(x)).shape == (4, 3, 2)
    goal = {"where": jnp.full((4, 3, 2, 2), 7.0), "how": jnp.zeros((4, 3))}
    features = encoders.features(space, step(x, goal))
    np.testing.assert_array_equal(features[0, 0], [1, 1, 0, 7, 7, 7, 7])
