"""SQIL: who is paid what."""

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import sqil
from jaxrl.core.errors import UserError
from tests.algorithms.imitation.test_gail import start_agent

SETTINGS = {k: v for k, v in sqil.TINY.items() if k != "env"}


def test_the_experts_half_of_each_shard_is_paid_and_the_policys_is_not(no_training):
    env = envs.make("pendulum")
    _, _, batch = start_agent(sqil.sqil, env, SETTINGS | {"batch_size": 16})
    x = batch.transitions
    paid = np.asarray(x.reward).reshape(4, 4)
    np.testing.assert_array_equal(paid, np.tile([1.0, 1, 0, 0], (4, 1)))
    config = sqil.sqil.complete_config(SETTINGS)
    shown = config.demonstrations.load(env)
    known = {tuple(np.asarray(row)) for row in shown.observation}
    met = [tuple(row) in known for row in np.asarray(x.observation)]
    np.testing.assert_array_equal(np.reshape(met, (4, 4)), paid == 1)


def test_halves_that_shards_do_not_divide_are_refused():
    with pytest.raises(UserError, match="multiple of 8"):
        sqil.sqil.agent(envs.make("pendulum"), SETTINGS | {"batch_size": 12})
