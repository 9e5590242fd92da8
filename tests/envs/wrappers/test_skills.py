"""Skills: what they change of an environment, and what they leave."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import wrappers

ENV = envs.make("corridors")
WRAPPED = wrappers.skills(ENV, 3)


@jax.jit
def begin(keys, params):
    return jax.vmap(WRAPPED.reset, (0, None))(keys, params)


def test_each_episode_has_a_skill_or_all_have_the_one_that_is_given():
    keys = jax.random.split(random.key(0), 3_000)
    _, timestep = begin(keys, WRAPPED.params)
    goal = np.asarray(timestep.goal)
    assert goal.shape == (3_000, 3) and np.all(goal.sum(-1) == 1)
    np.testing.assert_allclose(goal.mean(0), 1 / 3, atol=0.04)
    _, timestep = begin(keys, dataclasses.replace(WRAPPED.params, skill=2))
    assert np.all(np.asarray(timestep.goal) == [0, 0, 1])


def test_a_skill_stays_for_an_episode_and_changes_nothing_else():
    key, right = random.key(1), jnp.int32(3)
    state, timestep = WRAPPED.reset(key, WRAPPED.params)
    inner, plain = ENV.reset(key, ENV.params)
    for _ in range(3):
        np.testing.assert_array_equal(timestep.observation, plain.observation)
        assert timestep.reward == plain.reward
        np.testing.assert_array_equal(timestep.goal, np.eye(3)[int(state.skill)])
        assert int(WRAPPED.expert(state, WRAPPED.params)) == int(ENV.expert(inner, ENV.params))
        state, timestep = WRAPPED.step(key, state, right, WRAPPED.params)
        inner, plain = ENV.step(key, inner, right, ENV.params)


def test_environments_with_goals_and_single_skills_are_refused():
    with pytest.raises(UserError, match="has goals already"):
        wrappers.skills(envs.make("goal_maze"), 2)
    with pytest.raises(UserError, match="number of skills of 'corridors' is 1"):
        wrappers.skills(ENV, 1)
