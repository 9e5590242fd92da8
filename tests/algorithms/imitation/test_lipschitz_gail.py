"""Off-policy adversarial imitation: the factor on rewards against the formula."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import lipschitz_gail
from jaxrl.core import random
from tests.algorithms.imitation.test_gail import start_agent

SETTINGS = {k: v for k, v in lipschitz_gail.TINY.items() if k != "env"}


@pytest.mark.slow
@pytest.mark.parametrize("slope", [0.0, 1e6])
def test_rewards_shrink_where_the_dynamics_are_steep(slope, no_training):
    settings = SETTINGS | {"dynamics_slope": slope, "floor": 0.2}
    agent, state, batch = start_agent(
        lipschitz_gail.lipschitz_gail, envs.make("pendulum"), settings
    )
    update = jax.jit(agent.update)
    for _ in range(3):
        state, info = update(state, batch, random.key(3))
    factor = float(info.metrics["reward_factor"])
    # Nothing is steeper than a million.
    if slope:
        assert factor == 1.0
        return
    assert 0.2 <= factor < 1.0
    own = state.agent.extra.own.steepness
    assert own.count == 3 and own.mean > 0


def test_the_environments_reward_is_not_read(no_training):
    builder = lipschitz_gail.lipschitz_gail
    agent, state, batch = start_agent(
        builder, envs.make("pendulum"), SETTINGS | {"preconditioned": False}
    )
    x = batch.transitions
    other = dataclasses.replace(x.next_timestep, reward=5.0 - 3 * x.reward)
    changed = dataclasses.replace(batch, transitions=dataclasses.replace(x, next_timestep=other))
    update = jax.jit(agent.update)
    new, same = (update(state, b, random.key(3))[0] for b in (batch, changed))
    jax.tree.map(np.testing.assert_array_equal, new.agent.parts, same.agent.parts)
