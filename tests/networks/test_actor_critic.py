import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import TimeStep, Transition
from jaxrl.networks.actor_critic import ActorCritic, unroll

T, B = 12, 3


def network(recurrent):
    return ActorCritic(Box(-1.0, 1.0, (2,)), Discrete(3), (8,), "tanh", recurrent)


def transitions(first):
    """Return a window whose successors differ from the time steps after a reset."""
    keys = jax.random.split(random.key(0), 3)
    observation = jax.random.normal(keys[0], (T, B, 2))
    done = jnp.append(first[1:], jnp.zeros((1, B), bool), 0)
    successor = jnp.append(observation[1:], jax.random.normal(keys[1], (1, B, 2)), 0)
    successor = jnp.where(done[..., None], jax.random.normal(keys[2], (T, B, 2)), successor)
    zeros, no = jnp.zeros((T, B)), jnp.zeros((T, B), bool)
    return Transition(
        TimeStep(observation, zeros, no, no, first),
        zeros.astype(jnp.int32),
        TimeStep(successor, zeros, no, done, no),
        (),
        {},
    )


@pytest.fixture(scope="module", params=[0, 6], ids=["feed-forward", "gru"])
def case(request):
    net = network(request.param)
    first = jax.random.uniform(random.key(5), (T, B)) < 0.3
    window = transitions(first)
    memory = jax.tree.map(lambda x: x + 0.7, net.initial(B))
    params = net.init(random.key(1), jax.tree.map(lambda x: x[0], window.timestep), memory)
    params = jax.tree.map(lambda x: 3 * x, params)  # so that values differ clearly
    return (
        net,
        params,
        window,
        memory,
        jax.jit(unroll, static_argnums=0)(net, params, window, memory),
    )


@pytest.mark.slow
def test_unrolling_equals_stepping(case):
    net, params, window, memory, unrolled = case
    step = jax.jit(net.apply)
    for t in range(T):
        at = jax.tree.map(lambda x, t=t: x[t], window)
        reset = at.timestep.first
        memory = jax.tree.map(
            lambda m, z, reset=reset: jnp.where(reset[:, None], z, m), memory, net.initial(B)
        )
        policy, value, memory = step(params, at.timestep, memory)
        np.testing.assert_allclose(unrolled.policy.logits[t], policy.logits, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(unrolled.value[t], value, rtol=1e-4, atol=1e-5)
        # The true successor, given the memory after the step, even if the episode was truncated.
        _, successor, _ = step(params, at.next_timestep, memory)
        np.testing.assert_allclose(unrolled.next_value[t], successor, rtol=1e-4, atol=1e-5)


def test_successors_values_are_the_next_values_within_an_episode(case):
    *_, window, _, unrolled = case
    within = ~np.asarray(window.done[:-1])
    np.testing.assert_allclose(
        unrolled.next_value[:-1][within], unrolled.value[1:][within], rtol=1e-4, atol=1e-5
    )
    cut = np.asarray(window.done[:-1])
    assert (np.abs(unrolled.next_value[:-1][cut] - unrolled.value[1:][cut]) > 1e-3).all()


@pytest.mark.slow
def test_masks_reach_the_head(case):
    net, params, window, memory, _ = case
    legal = jnp.zeros((T, B, 3), bool).at[..., 2].set(True)
    window = dataclasses.replace(
        window, timestep=dataclasses.replace(window.timestep, legal_actions=legal)
    )
    policy, _, _ = net.apply(params, window.timestep, memory, method="unroll")
    assert (policy.mode() == 2).all()


@pytest.mark.slow
def test_policy_and_value_share_no_torso():
    net = network(0)
    window = transitions(jnp.zeros((T, B), bool))
    params = net.init(random.key(1), jax.tree.map(lambda x: x[0], window.timestep), ())
    gradient = jax.grad(lambda p: unroll(net, p, window, ()).value.sum())(params)["params"]
    assert all((x == 0).all() for x in jax.tree.leaves((gradient["actor"], gradient["head"])))
    assert any((x != 0).any() for x in jax.tree.leaves(gradient["critic"]))


def test_memory_at_an_episodes_start():
    assert network(0).initial(4) == ()
    np.testing.assert_array_equal(network(6).initial(4), np.zeros((4, 6)))
