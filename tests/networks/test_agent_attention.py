"""Attention over a team's hidden states: who is heard, any number of agents, and no order."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.spaces import Box
from jaxrl.envs import timesteps
from jaxrl.networks.agent_attention import AgentAttention, TeamQNetwork

RNG = np.random.default_rng(0)
NETWORK = AgentAttention(layers=2, heads=2)
HIDDEN = RNG.normal(size=(3, 4, 8)).astype(np.float32)  # three teams of four agents
ALIVE = np.ones((3, 4), bool)
PARAMS = NETWORK.init(random.key(0), HIDDEN, ALIVE)


def apply(hidden=HIDDEN, alive=ALIVE):
    return np.asarray(NETWORK.apply(PARAMS, jnp.asarray(hidden), jnp.asarray(alive)))


def test_messages_come_from_the_living_of_ones_own_team():
    """Finds who hears whom by moving one agent's hidden state."""
    alive = ALIVE.copy()
    alive[0, 2] = alive[1, :2] = False
    plain = apply(alive=alive)
    for team in range(3):
        for agent in range(4):
            moved = HIDDEN.copy()
            moved[team, agent] += RNG.normal(size=8)
            changed = (np.abs(apply(moved, alive) - plain) > 1e-6).any(-1)
            heard = np.zeros((3, 4), bool)
            heard[team, agent] = True  # its own residual connection
            heard[team] |= alive[team, agent]
            np.testing.assert_array_equal(changed, heard)


def test_agents_have_no_order():
    order = np.array([2, 0, 3, 1])
    alive = ALIVE.copy()
    alive[1, 3] = False
    np.testing.assert_allclose(
        apply(HIDDEN[:, order], alive[:, order]), apply(HIDDEN, alive)[:, order], atol=1e-5
    )


def test_a_team_of_dead_agents_is_finite():
    assert np.isfinite(apply(alive=np.zeros_like(ALIVE))).all()


def count(agents, layers=1):
    network = TeamQNetwork(Box(-1.0, 1.0, (6,)), 3, (8,), layers, 2)
    timestep = timesteps.first(jnp.zeros((1, agents, 6)))
    params = jax.eval_shape(lambda: network.init(random.key(0), timestep))
    return sum(x.size for x in jax.tree.leaves(params))


def test_the_number_of_parameters_is_that_of_any_team():
    assert count(3) == count(10) > count(3, layers=0)


@pytest.mark.parametrize("layers", [0, 1])
def test_an_agents_values_depend_on_what_others_see_if_there_are_messages(layers):
    network = TeamQNetwork(Box(-1.0, 1.0, (6,)), 3, (8,), layers, 2)
    timestep = timesteps.first(jnp.asarray(RNG.normal(size=(5, 4, 6)), jnp.float32))
    params = network.init(random.key(1), timestep)
    moved = timestep.observation.at[:, 0].add(1.0)
    alive = jnp.asarray(RNG.random((5, 4)) < 0.5).at[:, 0].set(np.arange(5) % 2 > 0)
    alive = alive.at[:, 1].set(True)
    values = lambda seen: network.apply(
        params, dataclasses.replace(timestep, observation=seen, alive=alive)
    )
    others = np.abs(values(moved) - values(timestep.observation))[:, 1:].max((1, 2))
    heard = np.asarray(alive[:, 0]) & (layers > 0)
    np.testing.assert_array_equal(others > 1e-6, heard)
