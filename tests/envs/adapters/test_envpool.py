"""Environments of EnvPool on the host."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.runtime import host
from jaxrl.runtime.players import play
from jaxrl.sources.handed import Play
from tests.envs.adapters.hosting import constant


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_pools_return_the_true_last_observation(name):
    pytest.importorskip("envpool")
    env = envs.make(f"envpool/{name}")
    environments = host.Environments(env, 3)
    environments.reset(random.key(0))
    first = environments.timestep.observation
    environments.reset(random.key(1))
    assert not np.array_equal(environments.timestep.observation, first)
    environments.reset(random.key(0))
    np.testing.assert_array_equal(environments.timestep.observation, first)
    action = jnp.int32(1) if name == "CartPole-v1" else jnp.zeros(1)
    steps = 250
    window = Play(env, 3, steps, fresh=False, masked=False)
    played = play(environments, constant(action), random.key(0), window)
    x = played.batch.transitions
    done, first = x.next_timestep.done, x.timestep.first
    np.testing.assert_array_equal(first[1:], done[:-1])
    assert done.any() and (x.extras["before"][first] == 0).all()
    seen, after = x.timestep.observation, x.next_timestep.observation
    assert (seen[1:] == after[:-1])[~first[1:]].all()
    if name == "CartPole-v1":
        last = after[x.next_timestep.terminated]
        assert (np.abs(last[:, 2]) > 0.2).all()  # fallen, not begun anew
        assert (np.abs(seen[first][:, 2]) <= 0.05).all()
    else:
        assert np.flatnonzero(x.next_timestep.truncated[:, 0]).tolist() == [199]
        assert not x.next_timestep.terminated.any()
