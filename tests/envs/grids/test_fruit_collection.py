"""Fruits are rewarded once each, by place."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError


def test_each_fruit_pays_once_and_the_last_one_ends():
    """Play 64 episodes of the expert and count their steps on the host."""
    env, n, steps = envs.make("fruit_collection", fruit_reward=2.0), 64, 90

    @jax.jit
    def run(keys):
        state, first = jax.vmap(env.reset, (0, None))(keys, env.params)

        def body(state, _):
            action = jax.vmap(env.expert, (0, None))(state, env.params)
            state, timestep = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, env.params)
            return state, timestep

        return state, first, jax.lax.scan(body, state, None, steps)[1]

    state, first, path = jax.device_get(run(jax.random.split(random.key(0), n)))
    agent, fruit = np.moveaxis(np.concatenate([first.observation[None], path.observation]), -1, 0)
    assert (agent.sum((2, 3)) == 1).all() and (fruit[0].sum((1, 2)) == 5).all()
    assert len(np.unique(np.argwhere(fruit[0])[:, 1:], axis=0)) == 10  # always the same places
    assert not (agent[0] & fruit[0]).any()

    eaten = fruit[:-1] & ~fruit[1:] & 1
    assert (eaten <= agent[1:]).all() and (fruit[1:] <= fruit[:-1]).all()
    np.testing.assert_array_equal(path.reward, 2.0 * eaten.sum((2, 3)))
    components = np.stack([path.reward_components[f"fruit_{i:02d}"] for i in range(10)])
    np.testing.assert_array_equal(components.sum(0), path.reward)
    np.testing.assert_array_equal(components.sum(1) > 0, state.inner.fruits.T)
    np.testing.assert_array_equal(path.metrics["fruits"], path.reward.cumsum(0) / 2)
    over = fruit[1:].sum((2, 3)) == 0
    assert over[-1].all()
    np.testing.assert_array_equal(path.terminated, over)
    moved = np.argwhere(agent)[:, 2:].reshape(steps + 1, n, 2)
    assert (np.abs(np.diff(moved, axis=0)).sum(-1) <= 1).all()

    frame = env.render(jax.tree.map(lambda x: x[0], state), env.params)
    assert frame.dtype == np.uint8 and frame.shape == (160, 160, 3)
    # Background, an empty place, a fruit and the agent, each with a darker line.
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) == 8


@pytest.mark.parametrize(("places", "says"), [(1, "an integer from 2 up"), (100, "too few for")])
def test_impossible_rooms_are_rejected(places, says):
    with pytest.raises(UserError, match=says):
        envs.make("fruit_collection", places=places)
