"""Steps that are none, such as those of a vector that resets in a step of its own, or of an agent
that is dead, are learned from by no algorithm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import registry
from jaxrl.core import random
from jaxrl.core.types import Policy

# Algorithms that learn from windows, or reduce them to something else.
NAMES = ("a2c", "dreamer", "dqn", "mpo", "muzero", "n_step_dqn", "ppo", "pqn", "r2d2", "rainbow")
NAMES += ("sac", "tagi_dqn", "trpo", "v_mpo")


def batch_of(algorithm):
    """Return a first state of the agent, and a batch that its source hands out after a window."""
    agent, source = algorithm.agent, algorithm.source
    state = agent.init(random.key(0), algorithm.hyper)
    policy = Policy(agent.act, agent.memory, state)
    begun = source.init(random.key(1), algorithm.hyper, policy)
    begun, fresh, _ = source.collect(begun, policy, random.key(2))
    return state, source.sample(begun, fresh, random.key(3))


@pytest.mark.parametrize("name", NAMES)
def test_an_update_takes_padding(name):
    algorithm = registry.builder(name)[0](*registry.tiny(name))

    def update():
        state, batch = batch_of(algorithm)
        mask = jnp.ones(batch.transitions.first.shape, bool)
        batch = dataclasses.replace(batch, mask=mask)
        return algorithm.agent.update(state, batch, random.key(4))[0]

    jax.eval_shape(update)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trpo", "v_mpo", "r2d2", "n_step_dqn", "tagi_dqn"])
def test_what_padding_holds_changes_nothing(name):
    """Rewards and actions where the mask is False are arbitrary."""
    env, config = registry.tiny(name)
    algorithm = registry.builder(name)[0](env, config)

    @jax.jit
    def update(reward):
        state, batch = batch_of(algorithm)
        x = batch.transitions
        sequences = x.reward.ndim > 1
        rows = jnp.arange(x.reward.shape[0])
        mask = jnp.broadcast_to((rows < 2) if sequences else (rows > 1), x.reward.shape[::-1]).T
        if name == "n_step_dqn":  # of a window its first step decides
            mask = jnp.broadcast_to(jnp.arange(x.reward.shape[1]) > 1, x.reward.shape)
        last = jnp.where(rows == 1, True, False)
        after = x.next_timestep
        after = dataclasses.replace(
            after,
            reward=jnp.where(mask, after.reward, reward),
            terminated=after.terminated | jnp.broadcast_to(last, x.reward.shape[::-1]).T
            if sequences
            else after.terminated,
        )
        batch = dataclasses.replace(
            batch, transitions=dataclasses.replace(x, next_timestep=after), mask=mask
        )
        new, _ = algorithm.agent.update(state, batch, random.key(4))
        return jax.tree.leaves(new)

    for one, other in zip(update(0.0), update(50.0), strict=True):
        np.testing.assert_array_equal(one, other)
