"""Finite environments keep the rules of an environment.

They are one step function that plays tables, so one environment of each program that it can become
is
checked: what else an environment is, is data, and `test_kit` plays that of all of them. (An
environment without random numbers, the taxi's, is played to the end in `test_environments`.)
"""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import spaces

PROGRAMS = {
    "noise on the reward": ("deep_sea", {"stochastic": True}),
    "many starts, success": ("four_rooms", {}),
    "noise on the observation": ("diabolical_lock", {"observation": "rich"}),
    "factors": ("sysadmin", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_environment_keeps_every_rule(program):
    name, settings = PROGRAMS[program]
    envs.check_environment(envs.make(name, **settings), steps=16)


WORLDS = [name for name, path in envs.registry.BUILT_IN.items() if ".tables." in path]


@pytest.mark.parametrize("name", WORLDS)
def test_reset_and_step_have_one_structure(name):
    env = envs.make(name)
    key = jax.random.key(0)
    fresh = jax.eval_shape(env.reset, key, env.params)
    later = jax.eval_shape(env.step, key, fresh[0], np.int32(0), env.params)
    assert jax.tree.leaves(fresh) == jax.tree.leaves(later)
    assert jax.tree.structure(fresh) == jax.tree.structure(later)
    space, seen = env.observation_space, later[1].observation
    assert (seen.shape, seen.dtype) == (space.shape, space.dtype)
    assert isinstance(env.action_space, spaces.Discrete) and env.expert is not None
