"""PPO with a Lagrange multiplier: its parts against NumPy, and the direction of lambda."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient import ppo_lagrangian as pl
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, Policy, TimeStep, Transition
from tests.kit.stub import stub

RNG = np.random.default_rng(4)
T, B = 7, 5
HYPER = {"discount": 0.9, "gae_lambda": 0.8, "cost_discount": 0.95, "cost_gae_lambda": 0.7}


def test_the_costs_of_episodes_continue_across_windows():
    cost = RNG.random((2 * T, B)).astype(np.float32)
    done = RNG.random((2 * T, B)) < 0.2
    first, running = pl.episode_costs(cost[:T], done[:T], jnp.zeros(B))
    second, _ = pl.episode_costs(cost[T:], done[T:], running)
    expected, spent = np.zeros((2 * T, B)), np.zeros(B)
    for t in range(2 * T):
        spent = spent + cost[t]
        expected[t] = spent
        spent = np.where(done[t], 0, spent)
    np.testing.assert_allclose(np.concatenate([first, second]), expected, rtol=1e-5)
    assert (~done[T - 1]).any()


@pytest.mark.parametrize(("multiplier", "masked"), [(0.0, False), (3.0, False), (3.0, True)])
def test_the_advantage_combines_reward_and_cost(multiplier, masked):
    """The mask leaves out the first two environments."""
    value, cost_value = jnp.asarray(RNG.normal(size=(2, 2 * T * B)), jnp.float32)
    number = np.arange(2 * T * B).reshape(2, T, B)
    ended = RNG.random((T, B)) < 0.2
    no = np.zeros_like(ended)
    reward, cost = RNG.normal(size=(2, T, B)).astype(np.float32)
    at = lambda i, r, end: TimeStep(number[i], r, end, no, no, cost=cost)
    x = Transition(at(0, reward, no), no, at(1, reward, ended), (), {"log_prob": reward})

    def actor_critic(timestep, memory, method=None):
        return None, value[timestep.observation], jnp.zeros((T, 0))

    raw = -np.inf if multiplier == 0 else np.log(np.expm1(multiplier))
    net = stub(
        hyper=HYPER,
        actor_critic=actor_critic,
        cost_critic=lambda timestep: cost_value[timestep.observation],
        multiplier=lambda: jnp.float32(raw),
    )
    counts = np.broadcast_to(np.arange(B) >= 2 * masked, (T, B))
    mask = jnp.asarray(counts) if masked else None
    batch = Batch(x, jnp.float32(0), memory=jnp.zeros((B, 0)), mask=mask)
    sample = pl.combine_advantages(net, batch)

    def gae(reward, value, following, discount, decay):
        advantage, later = np.zeros((T, B)), np.zeros(B)
        for t in reversed(range(T)):
            error = reward[t] + discount * ~ended[t] * following[t] - value[t]
            later = advantage[t] = error + discount * decay * ~ended[t] * later
        return advantage

    of_reward = gae(reward, value[number[0]], value[number[1]], 0.9, 0.8)
    of_cost = gae(cost, cost_value[number[0]], cost_value[number[1]], 0.95, 0.7)
    scaled = (of_reward - of_reward[counts].mean()) / of_reward[counts].std()
    expected = (scaled - multiplier * (of_cost - of_cost[counts].mean())) / (1 + multiplier)
    np.testing.assert_allclose(sample.advantage[counts], expected[counts], rtol=1e-3, atol=1e-4)
    target = of_reward + value[number[0]]
    np.testing.assert_allclose(sample.target[counts], target[counts], rtol=1e-4, atol=1e-5)
    expected = of_cost + cost_value[number[0]]
    np.testing.assert_allclose(sample.cost_target, expected, rtol=1e-4, atol=1e-5)


def test_the_cost_value_regresses_on_its_targets():
    value, target = RNG.normal(size=(2, 9)).astype(np.float32)
    sample = pl.Sample(None, (), *[()] * 5, target)
    loss = pl.cost_loss(stub(cost_critic=lambda timestep: value), sample)
    ratio = np.asarray(loss) / (value - target) ** 2
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)


@pytest.mark.slow
def test_lambda_rises_with_episodes_that_cost_too_much_and_falls_with_others():
    """One program updates on windows whose episodes have a given cost, and on one in which no
    episode ended."""
    env = envs.make("hazards", size=5)
    config = pl.Config(
        rollouts=pl.Rollouts(num_envs=B, num_steps=T),
        passes=pl.Passes(epochs=1, minibatches=1),
        torso=pl.Torso(hidden=(4,)),
        cost_limit=3.0,
        multiplier_init=0.5,
    )
    agent = pl.ppo_lagrangian.agent(env, config)
    state = agent.init(jax.random.key(0), agent.hyper)
    source = pl.ppo_lagrangian.source(env, config)

    @jax.jit
    def update(cost, done):
        policy = Policy(agent.act, agent.memory, state)
        begun = source.init(jax.random.key(1), {}, policy)
        _, batch, _ = source.collect(begun, policy, jax.random.key(2))
        after = dataclasses.replace(
            batch.transitions.next_timestep,
            cost=jnp.full((T, B), cost / T),
            truncated=jnp.zeros((T, B), bool).at[-1].set(done),
        )
        transitions = dataclasses.replace(batch.transitions, next_timestep=after)
        batch = dataclasses.replace(batch, transitions=transitions)
        new, info = agent.update(state, batch, jax.random.key(3))
        return info.metrics["multiplier"], new.extra

    (dear, nothing), (cheap, _), (same, running) = (
        update(*window) for window in ((9.0, True), (1.0, True), (9.0, False))
    )
    assert cheap < 0.5 < dear
    np.testing.assert_allclose(same, 0.5, rtol=1e-5)
    np.testing.assert_array_equal(nothing, 0)
    np.testing.assert_allclose(running, 9.0, rtol=1e-5)


def test_environments_without_exactly_one_cost_are_rejected():
    with pytest.raises(UserError, match="keeps one cost within a limit; 'cartpole' has none"):
        pl.ppo_lagrangian.agent(envs.make("cartpole"))
