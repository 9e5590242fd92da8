"""Rules of an environment, for finite environments.

All are one step function that plays tables, so one environment is checked for each program that it
can become: everything else about an environment is data, and `test_kit` plays that of all of them.
(The taxi, an environment without random numbers, is played to the end in `test_environments`.)
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


ENVIRONMENTS = [name for name, path in envs.registry.BUILT_IN.items() if ".tables." in path]


@pytest.mark.parametrize("name", ENVIRONMENTS)
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
