"""The crossing: motion, collisions, rewards, what the cars see."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.particles import crossing as c

ENV = make("crossing")


def step(place, speed, action, **params):
    """Take a step from places and speeds of both cars; return the state and the time step."""
    state, _ = ENV.reset(random.key(0), ENV.params)
    number = lambda x: jnp.asarray(x, jnp.float32)
    inner = dataclasses.replace(state.inner, place=number(place), speed=number(speed))
    acts = {n: jnp.int32(a) for n, a in zip(c.NAMES, action, strict=True)}
    rules = dataclasses.replace(ENV.params, **params)
    state, timestep = jax.jit(ENV.step)(
        random.key(1), dataclasses.replace(state, inner=inner), acts, rules
    )
    return state.inner, timestep


def test_cars_speed_up_brake_and_keep_their_limits():
    state, timestep = step([-10, -20], [2, 3], [2, 0])
    np.testing.assert_allclose(state.speed, [3, 1.5])
    np.testing.assert_allclose(state.place, [-10 + 1.25, -20 + 1.125], rtol=1e-6)
    np.testing.assert_allclose(timestep.reward, [1.25 - 0.05 * 4, 1.125 - 0.05 * 9], rtol=1e-5)
    state, timestep = step([-10, -20], [4.75, 0], [2, 0])
    np.testing.assert_allclose(state.speed, [5, 0])
    np.testing.assert_allclose(state.place[1], -20)
    assert 2.4 < float(state.place[0]) + 10 < 2.5
    assert float(timestep.metrics["meters"]) == pytest.approx(float(state.place[0]) + 10, rel=1e-5)


def test_cars_that_come_too_near_collide_also_between_the_ends_of_a_step():
    _, apart = step([-3.0, -3.0], [0, 0], [1, 1])
    assert not apart.terminated
    _, hit = step([-2.7, -2.7], [0, 0], [1, 1])
    assert hit.terminated and not hit.truncated and float(hit.metrics["collided"]) == 1
    np.testing.assert_allclose(hit.reward, -20)
    # One passes the other's front within a step, and is apart again at its end.
    _, passing = step([-1.2, -0.9], [5, 0], [1, 1], apart=1.0)
    assert passing.terminated
    _, slower = step([-1.2, -0.9], [0.1, 0], [1, 1], apart=1.0)
    assert not slower.terminated


def test_each_sees_itself_first():
    _, timestep = step([-10, 6], [2, 4], [1, 1])
    east, north = (timestep.observation[n] for n in c.NAMES)
    np.testing.assert_allclose(east, [-9 / 20, 2 / 5, 8 / 20, 4 / 5], rtol=1e-6)
    np.testing.assert_allclose(north, [*east[2:], *east[:2]])
    assert float(timestep.metrics["passed"]) == 0.5


def test_the_crossing_keeps_the_rules_of_environments():
    check_environment(make("crossing", steps=4))
    with pytest.raises(UserError, match="The steps of 'crossing' is 0"):
        make("crossing", steps=0)
