"""Readers who begin in the middle of an episode: they see nothing of what stands before."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core import random
from jaxrl.core.memory import shrink
from jaxrl.core.types import Policy
from jaxrl.kit.groups import LinearTorso, Memory

ENV = envs.make("guarded_requests", letters=3, length=3)
BEGINS = 3 + 1 + 3 + 1  # the step at which the defender reads its first token
MEMORIES = {"transformer": Memory(8, transformer=1), "gru": Memory(8)}


@functools.cache
def play_by(memory):
    """Return the network, its parameters, and 64 episodes of it, by acting."""
    network = policy_network(ENV, LinearTorso(), MEMORIES[memory])
    first = jax.vmap(ENV.reset, in_axes=(0, None))(jax.random.split(random.key(5), 1), ENV.params)
    params = network.init(random.key(3), first[1], network.initial(1))

    def act(state, timestep, memory, key, greedy):
        policy, _, memory = network.apply(state, timestep, memory)
        action = policy.sample(seed=key)
        return action, memory, {"log_prob": policy.log_prob(action)}

    @jax.jit
    def play(params, key):
        policy = Policy(act, network.initial, params)
        source = Groups(prompts=64, answers=1).source(ENV)
        return source.collect(source.init(key, {}, policy), policy, key)[1]

    return network, params, play(params, random.key(0)).transitions


def log_prob(network, params, t, memory):
    apply = jax.jit(functools.partial(network.apply, method="unroll"))
    return np.asarray(apply(params, t.timestep, shrink(memory))[0].log_prob(t.action))


@pytest.mark.parametrize("memory", MEMORIES)
def test_acting_and_unrolling_forget_alike(memory):
    network, params, t = play_by(memory)
    restart = np.asarray(t.timestep.restarts)
    assert restart[[0, BEGINS]].all() and restart.sum() == 2 * 64
    unrolled = log_prob(network, params, t, network.initial(64))
    np.testing.assert_allclose(unrolled, np.asarray(t.extras["log_prob"]), atol=1e-5)


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_second_reader_sees_nothing_of_the_first_text(memory):
    network, params, t = play_by(memory)
    second = jax.tree.map(lambda x: x[BEGINS:], t)
    blank = network.initial(64)
    alone = log_prob(network, params, second, blank)
    np.testing.assert_allclose(alone, np.asarray(t.extras["log_prob"])[BEGINS:], atol=1e-5)
    # Without the restart, what stands before is seen.
    tokens = {name: x for name, x in t.timestep.tokens.items() if name != "restart"}
    all_seen = dataclasses.replace(t, timestep=dataclasses.replace(t.timestep, tokens=tokens))
    difference = log_prob(network, params, all_seen, blank)[BEGINS:] - alone
    assert jnp.abs(difference).max() > 1e-3
