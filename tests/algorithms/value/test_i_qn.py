"""i-QN with tables for networks, against value iteration and DQN."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.algorithms.value.i_qn import i_qn
from jaxrl.core import random, settings
from jaxrl.core.hyper import hypers
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.kit.stub import mask_actions, stub, transitions

CARTPOLE, GAMMA = envs.make("cartpole"), 0.9
TABLE = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)
# A network that is a table, indexed by the observation, a number.
NETWORK = types.SimpleNamespace(
    init=lambda key, timestep: {"table": jnp.asarray(TABLE)},
    apply=lambda params, timestep: params["table"][timestep.observation][..., None],
)


def chain(states=8):
    """Return every action of every state once: 1 leads on and 0 back; the last state ends with a
    reward of 1."""
    state, action = np.divmod(np.arange(2 * states), 2)
    after = np.clip(state + np.where(action == 1, 1, -1), 0, states - 1)
    ended = (state == states - 1) & (action == 1)
    no, reward = np.zeros(2 * states, bool), ended.astype(np.float32)
    before = TimeStep(state, 0 * reward, no, no, no)
    return Transition(before, action, TimeStep(after, reward, ended, no, no), (), {})


def backups(table, times):
    """Return the table after `times` steps of value iteration."""
    x = chain()
    for _ in range(times):
        value = x.reward + GAMMA * ~x.terminated * table[x.next_timestep.observation].max(-1)
        table = value.reshape(table.shape)
    return table


def tables_after(algorithm, updates, x, **changes):
    """Return parameters and target of the part `q` after some updates on x."""
    config = settings.replace(algorithm.Config(), {"discount": GAMMA} | changes)
    agent = algorithm.agent(CARTPOLE, config, networks={"q": NETWORK})
    state, update = agent.init(random.key(0), hypers(config)), jax.jit(agent.update)
    for _ in range(updates):
        state, _ = update(state, Batch(x, jnp.float32(0)), random.key(1))
    q = state.parts["q"]
    return np.asarray(q.params["table"]), np.asarray(q.target["table"])


# The loss is a mean over 16 elements, so one step of this size takes a table to its target.
EXACT = {"optimizer.name": "sgd", "learning_rate": 16.0, "huber": 100.0}


def test_k_networks_are_k_iterations():
    k = 3
    changes = EXACT | {"iterations": k, "chain_period": 1, "target.period": 100}
    tables, targets = tables_after(i_qn, k, chain(), **changes)
    for i in range(k):
        np.testing.assert_allclose(tables[i], backups(TABLE, i + 1), rtol=1e-4, atol=1e-5)
        # The targets were set before the last step, to tables that did not move in it.
        np.testing.assert_allclose(targets[i], backups(TABLE, i), rtol=1e-4, atol=1e-5)


def test_the_window_moves_by_one():
    k = 3
    changes = EXACT | {"iterations": k, "chain_period": 1, "target.period": k}
    tables, targets = tables_after(i_qn, k, chain(), **changes)
    for i in range(k):
        np.testing.assert_allclose(targets[i], backups(TABLE, i + 1), rtol=1e-4, atol=1e-5)
        ahead = backups(TABLE, min(i + 2, k))
        np.testing.assert_allclose(tables[i], ahead, rtol=1e-4, atol=1e-5)


def test_between_two_links_only_the_networks_move():
    changes = EXACT | {"iterations": 3, "chain_period": 4, "target.period": 100}
    _, targets = tables_after(i_qn, 3, chain(), **changes)
    np.testing.assert_array_equal(targets, np.stack([TABLE] * 3))
    np.testing.assert_array_equal(tables_after(i_qn, 5, chain(), **changes)[1][0], TABLE)


def test_one_iteration_is_dqn():
    x = transitions(4)
    changes = {"optimizer.name": "adam", "learning_rate": 0.1, "target.period": 3}
    ours = tables_after(i_qn, 7, x, iterations=1, chain_period=2, **changes)
    eps = {"optimizer.eps": 1.5e-4}
    theirs = tables_after(dqn, 7, x, **changes, **eps)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a[0], b)
    assert (theirs[0] != theirs[1]).any()


@pytest.mark.parametrize("greedy", [False, True])
def test_actions_are_legal_and_by_all_networks(greedy):
    x = mask_actions(transitions(2000), seed=3).timestep
    tables = jnp.float32([[0.0, 1.0], [1.0, 0.0]])  # one network for each action
    hyper = {"exploration.start": 0.0, "exploration.end": 0.0, "exploration.steps": 1.0}
    q = lambda s: jnp.broadcast_to(tables[:, None, :, None], (2, 2000, 2, 1))
    net = stub(q=q, hyper=hyper, env_steps=jnp.float32(0), key=lambda name: random.key(5))
    config = settings.replace(i_qn.Config(), {"iterations": 2})
    action = i_qn.recipe(CARTPOLE, settings.Static(config)).act(net, x, (), random.key(2), greedy)[
        0
    ]
    assert x.legal_actions[np.arange(2000), action].all()
    free = x.legal_actions.all(-1)
    np.testing.assert_allclose(np.asarray(action)[free].mean(), 0.5, atol=0.06)
