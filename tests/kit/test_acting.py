"""How agents act: noise that drifts, and random actions before the first update."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.spaces import Box
from jaxrl.core.types import TimeStep
from jaxrl.kit import acting
from tests.kit.stub import stub

SPACE = Box(-2.0, 2.0, (1,))
NO = jnp.zeros(3, bool)


def seen(first):
    return TimeStep(jnp.zeros(3), jnp.zeros(3), NO, NO, jnp.asarray(first))


def net(**more):
    hyper = {"noise.reversion": 0.15, "noise.deviation": 0.2}
    return stub(actor=lambda s: jnp.float32([[0.5], [1.9], [-0.5]]), hyper=hyper, **more)


def test_noise_drifts_within_an_episode_and_begins_at_zero_in_the_next():
    act, key = acting.add_drifting_noise("actor", SPACE, 2.0), random.key(0)
    memory, said = jnp.float32([[0.3], [0.4], [-0.2]]), np.float32([[0.5], [1.9], [-0.5]])
    action, after, _ = act(net(), seen([True, False, False]), memory, key, False)
    drawn = 0.2 * np.asarray(jax.random.normal(key, (3, 1)))
    expected = 0.85 * np.float32([[0.0], [0.4], [-0.2]]) + drawn
    np.testing.assert_allclose(after, expected, rtol=1e-5)
    np.testing.assert_allclose(action, np.clip(said + 2 * expected, -2, 2), rtol=1e-5)
    action, after, _ = act(net(), seen([False] * 3), memory, key, True)
    np.testing.assert_array_equal(action, said)
    np.testing.assert_array_equal(after, memory)


def test_actions_are_random_until_the_first_update():
    def told(net, timestep, memory, key, greedy):
        return net.actor(timestep), memory, {}

    act, key = acting.random_at_first(told, SPACE), random.key(1)
    of = lambda updates, greedy, key=key: np.asarray(
        act(net(updates=jnp.int32(updates)), seen(NO), (), key, greedy)[0]
    )
    said = of(1, False)
    np.testing.assert_array_equal(said, np.float32([[0.5], [1.9], [-0.5]]))
    np.testing.assert_array_equal(of(0, True), said)
    drawn = np.concatenate([of(0, False, random.key(i)) for i in range(40)])
    assert abs(drawn.mean()) < 0.5 and abs(drawn.std() - 4 / np.sqrt(12)) < 0.2
