"""Steps at which the clock ends an episode, and steps at which it does not."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Environment, TimeStep
from jaxrl.envs.wrappers.time_limit import time_limit


def _timestep(count, first, terminated=False):
    return TimeStep(
        observation=count,
        reward=count,
        terminated=jnp.asarray(terminated),
        truncated=jnp.zeros((), bool),
        first=jnp.asarray(first),
    )


def _step(key, state, action, params):
    state = state + 1.0
    return state, _timestep(state, False, state >= params)


# Counts its steps and terminates after `params` of them.
counter = Environment(
    name="counter",
    reset=lambda key, params: (jnp.zeros(()), _timestep(jnp.zeros(()), True)),
    step=_step,
    params=1e9,
    observation_space=Box(0.0, np.inf, ()),
    action_space=Discrete(1),
    render=lambda state, params: np.full((2, 3, 3), int(state), np.uint8),
)


def _episode(env, steps, params=None):
    """Return `(terminated, truncated)` of each step."""
    params = counter.params if params is None else params
    state, timestep = env.reset(jax.random.key(0), params)
    assert bool(timestep.first) and not bool(timestep.done)
    flags = []
    for _ in range(steps):
        state, timestep = env.step(jax.random.key(0), state, jnp.int32(0), params)
        flags.append((bool(timestep.terminated), bool(timestep.truncated)))
    return flags


def test_the_last_step_and_no_earlier_one_is_truncated():
    assert _episode(time_limit(counter, 3), 3) == [(False, False), (False, False), (False, True)]


def test_a_step_that_terminates_is_not_truncated():
    assert _episode(time_limit(counter, 3), 3, params=3.0)[-1] == (True, False)
    assert _episode(time_limit(counter, 3), 2, params=2.0)[-1] == (True, False)


def test_a_limit_of_one_step():
    assert _episode(time_limit(counter, 1), 1) == [(False, True)]


@pytest.mark.parametrize(("inner", "outer"), [(2, 5), (5, 2)])
def test_the_smaller_of_two_limits_holds(inner, outer):
    env = time_limit(time_limit(counter, inner), outer)
    assert env.max_steps == 2
    assert _episode(env, 2) == [(False, False), (False, True)]


def test_each_episode_has_its_own_clock():
    env = time_limit(counter, 2)
    assert _episode(env, 2) == _episode(env, 2)


def test_everything_else_passes_through():
    env = time_limit(counter, 3)
    for field in ("name", "params", "observation_space", "action_space"):
        assert getattr(env, field) is getattr(counter, field)
    state, _ = env.reset(jax.random.key(0), env.params)
    state, timestep = env.step(jax.random.key(0), state, jnp.int32(0), env.params)
    assert float(timestep.observation) == float(timestep.reward) == 1.0
    assert state.steps.dtype == jnp.int32
    np.testing.assert_array_equal(env.render(state, env.params), np.ones((2, 3, 3)))
    assert time_limit(dataclasses.replace(counter, render=None), 3).render is None


def test_the_same_arguments_give_the_same_object():
    assert time_limit(counter, 3) is time_limit(counter, np.int64(3))
    assert time_limit(counter, 3) is not time_limit(counter, 4)


@pytest.mark.parametrize("limit", [0, -1, 2.5, "3", None])
def test_a_limit_that_is_not_a_positive_integer_is_rejected(limit):
    with pytest.raises(UserError, match=r"time limit of 'counter' is .* positive integer"):
        time_limit(counter, limit)
