"""The adapter of navix against navix itself."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.envs.check_structure import check_structure
from tests.envs.adapters.training import trains

navix = pytest.importorskip("navix", reason="navix is not installed (the suites extra)")


def test_it_is_an_environment():
    envs.check_environment(envs.make("navix/Navix-Empty-5x5-v0"), 32)
    check_structure(envs.make("navix/Navix-DoorKey-5x5-v0"))


@pytest.mark.parametrize("name", ["Navix-Empty-5x5-v0", "Navix-Dynamic-Obstacles-5x5-v0"])
def test_the_same_keys_give_what_navix_gives(name):
    env, theirs = envs.make(f"navix/{name}", max_steps=20), navix.make(name, max_steps=20)
    first, *rest = jax.random.split(jax.random.key(3), 25)
    step, raw_step = jax.jit(env.step), jax.jit(theirs._step)
    state, timestep = jax.jit(env.reset)(first, env.params)
    raw = jax.jit(theirs.reset)(first)
    np.testing.assert_array_equal(timestep.observation, raw.observation)
    for number, key in enumerate(rest, 1):
        action = spaces.sample(env.action_space, jax.random.fold_in(key, 0))
        state, timestep = step(key, state, action, env.params)
        raw = raw_step(raw.replace(state=raw.state.replace(key=key)), action)
        np.testing.assert_array_equal(timestep.observation, raw.observation)
        assert float(timestep.reward) == float(raw.reward)
        assert bool(timestep.terminated) == (int(raw.step_type) == 2)
        assert bool(timestep.truncated) == (number == 20 and not timestep.terminated)
        if timestep.done:
            return
    raise AssertionError("no episode ended")


def test_views_are_theirs_and_unknown_ones_are_rejected():
    env = envs.make("navix/Navix-Empty-5x5-v0", view="symbolic_first_person")
    assert env.observation_space.shape == (7, 7, 3)
    with pytest.raises(UserError, match="view"):
        envs.make("navix/Navix-Empty-5x5-v0", view="x_ray")


@pytest.mark.slow
def test_an_agent_trains_in_it():
    trains(envs.make("navix/Navix-Empty-5x5-v0"))
