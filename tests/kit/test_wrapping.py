"""Agents around agents: hyperparameters in groups, and states that are enough to act."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import override, read_hyper, replace_hyper
from jaxrl.core.learn import evaluation_policy
from jaxrl.core.settings import replace
from jaxrl.core.types import Agent, Algorithm, Info, Policy, struct
from jaxrl.kit.state import acting_state
from jaxrl.kit.wrapping import params_of, within, wrap
from tests.learning.probes import probe

NOTHING: Any = None  # what is seen, where nobody looks


@struct
class State:
    total: jax.Array
    hyper: dict


def adder():
    """Return an agent that adds its hyperparameter in an update, and acts by it."""

    def update(state, batch, key):
        return State(state.total + state.hyper["rate"], state.hyper), Info({})

    return Agent(
        "adder",
        lambda key, hyper: State(jnp.float32(0), {"rate": jnp.asarray(hyper["rate"])}),
        lambda state, timestep, memory, key, greedy: (state.hyper["rate"], memory, {}),
        update,
        hyper={"rate": np.float32(1)},
        hand_over=lambda state: State(state.total + 100, {"rate": state.hyper["rate"]}),
    )


def double(agent):
    """Updates twice, and adds to its own sum `bonus` and what it reads of the agent's."""

    def update(state, batch, key):
        inner, _ = agent.update(state.agent, batch, key)
        inner, info = agent.update(inner, batch, key)
        return inner, state.own + state.hyper["bonus"] + state.hyper["rate"], info

    own = lambda state: jnp.float32(0)
    return wrap(agent, "doubled", own, update, hyper={"bonus": 10.0}, reads=("rate",))


def begin(agent, **changes):
    return agent.init(random.key(0), override(agent.hyper, changes))


def test_hyper_parameters_of_a_part_have_its_group_before_their_names():
    agent = within(double(adder()), "ppo")
    assert {name: float(value) for name, value in agent.hyper.items()} == {
        "ppo.rate": 1.0, "ppo.bonus": 10.0,
    }  # fmt: skip
    state = begin(agent, **{"ppo.rate": 2.0})
    # At all depths of the state, where sweeps and forks look for them.
    assert set(state.agent.hyper) == {"ppo.rate"} and state.agent.hyper["ppo.rate"] == 2
    assert set(state.hyper) == {"ppo.rate", "ppo.bonus"}
    state = replace_hyper(state, {"ppo.rate": 3.0})
    assert agent.act(state, NOTHING, (), random.key(0), True)[0] == 3
    after, _ = agent.update(state, NOTHING, random.key(0))
    assert after.agent.total == 6 and after.own == 13
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert agent.hand_over(after).agent.total == 106
    assert read_hyper(agent.hand_over(after)) == read_hyper(after)


def test_groups_nest():
    twice, dotted = within(within(adder(), "ppo"), "player"), within(adder(), "player.ppo")
    for agent in (twice, dotted):
        assert set(agent.hyper) == {"player.ppo.rate"}
        state = agent.update(begin(agent, **{"player.ppo.rate": 4.0}), NOTHING, random.key(0))[0]
        assert state.total == 4 and set(state.hyper) == {"player.ppo.rate"}


def test_evaluations_in_a_group_have_the_hyperparameters_that_they_have_outside():
    plain = dataclasses.replace(double(adder()), in_evaluation={"rate": "bonus"})
    for agent in (plain, within(plain, "ppo"), within(within(plain, "ppo"), "player")):
        made = Algorithm(
            "evaluated",
            agent.init,
            lambda state, key: (state, {}),
            policy=lambda state, agent=agent: Policy(agent.act, agent.memory, state),
            agent=agent,
        )
        policy = evaluation_policy(made, begin(agent))
        assert policy.act(policy.state, NOTHING, (), random.key(0), True)[0] == 10


@pytest.mark.slow
def test_a_learner_in_a_group_is_swept_by_its_dotted_name():
    env = probe()
    config = replace(ppo.Config(), {"hidden": (4,), "learning_rate": 1.0})
    agent = within(ppo.agent(env, config), "ppo")
    assert agent.hyper["ppo.optimizer.learning_rate"] == 1
    keys = jax.random.split(random.key(0), 2)
    rates = {**agent.hyper, "ppo.clip": jnp.array([0.1, 0.2])}
    swept = jax.vmap(agent.init, in_axes=(0, {n: 0 if n == "ppo.clip" else None for n in rates}))
    np.testing.assert_array_equal(swept(keys, rates).hyper["ppo.clip"], jnp.array([0.1, 0.2]))


@pytest.mark.slow
def test_parameters_alone_are_enough_to_act():
    env = probe()
    agent = ppo.agent(env, replace(ppo.Config(), {"hidden": (4,)}))
    state, timestep = begin(agent), example_timestep(env)
    player = acting_state(params_of(state))
    assert len(jax.tree.leaves(player)) < len(jax.tree.leaves(state))
    for greedy in (True, False):
        whole = agent.act(state, timestep, (), random.key(1), greedy)
        alone = agent.act(player, timestep, (), random.key(1), greedy)
        jax.tree.map(np.testing.assert_array_equal, alone, whole)
