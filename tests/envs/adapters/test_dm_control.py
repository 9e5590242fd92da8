"""Tasks of dm_control on the host."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control.sac import sac
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.runtime import host
from jaxrl.runtime.players import play
from jaxrl.sources.handed import Play
from tests.envs.adapters.hosting import constant


def test_tasks_of_dm_control():
    pytest.importorskip("dm_control")
    env = envs.make("dm_control/cartpole-swingup")
    assert env.max_steps == 1000 and set(env.observation_space) == {"position", "velocity"}
    environments = host.Environments(env, 2)
    environments.reset(random.key(0))
    first = environments.timestep.observation["position"]
    environments.reset(random.key(0))
    np.testing.assert_array_equal(environments.timestep.observation["position"], first)
    assert not np.array_equal(first[0], first[1])
    window = Play(env, 2, 1003, fresh=False, masked=False)
    x = play(environments, constant(jnp.zeros(1)), random.key(0), window).batch.transitions
    ends = np.flatnonzero(x.next_timestep.truncated[:, 0])
    assert ends.tolist() == [999] and not x.next_timestep.terminated.any()
    assert x.timestep.first[1000].all() and (x.extras["before"][1000] == 0).all()
    assert (x.next_timestep.reward >= 0).all() and (x.next_timestep.reward <= 1).all()
    with pytest.raises(UserError, match="did you mean 'dm_control/cartpole-swingup'"):
        envs.make("dm_control/cartpole-swingu")


def test_sac_learns_from_a_dict_with_scalars():
    pytest.importorskip("dm_control")
    env = envs.make("dm_control/walker-walk")
    sizes = {"num_envs": 1, "num_steps": 1, "warmup": 20, "batch_size": 8, "hidden": (8,)}
    algorithm = sac(env, replace(sac.Config(), sizes))
    environments = host.Environments(env, 1)
    run = host.start(algorithm, environments, random.key(0))
    run, row = host.train(algorithm, environments, run, 5)
    assert np.isfinite(m.values(row)["critic_loss"])
