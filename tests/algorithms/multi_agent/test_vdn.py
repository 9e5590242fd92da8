"""VDN and QMIX: the team's loss against NumPy, monotonicity, and which payoffs each can express."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.qmix import qmix
from jaxrl.algorithms.multi_agent.shared.views import state_view
from jaxrl.algorithms.multi_agent.vdn import vdn
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment, TimeStep, Transition
from jaxrl.envs import timesteps
from jaxrl.kit.agents import agent_names
from jaxrl.networks.mixing import MonotonicMixer
from tests.kit.stub import losses_of, stub

RNG = np.random.default_rng(0)
N = 32
AGENTS = ("a", "b")
# Rewards of both actions of both agents (Rashid et al., 2018, table 1, state 2B): monotonic, and no
# sum of one number of each agent.
PAYOFF = np.array([[0.0, 1.0], [1.0, 8.0]], np.float32)


def one_step(agents=AGENTS):
    """A game of one step: each of two agents chooses 0 or 1, and both get the payoff."""

    def timestep(build, reward, **more):
        seen = {agent: jnp.ones(1) for agent in agents}
        return build(seen, reward, privileged={"state": jnp.ones(1)}, **more)

    def step(key, state, action, params):
        reward = jnp.asarray(PAYOFF)[action["a"], action["b"]]
        return state, timestep(timesteps.following, reward, terminated=True)

    return Environment(
        "one_step",
        lambda key, params: (jnp.zeros(()), timestep(timesteps.first, 0.0)),
        step,
        (),
        {agent: Box(0.0, 1.0, (1,)) for agent in agents},
        {agent: Discrete(2) for agent in agents},
        1,
    )


def batch(dead=False):
    """Transitions whose observations are numbers of rows; agent b has an illegal action, and may be
    dead."""
    no = np.zeros(N, bool)
    alive = np.stack([~no, RNG.random(N) < 0.5], -1) if dead else None
    seen = lambda i: {"a": i * N + np.arange(N), "b": (2 + i) * N + np.arange(N)}
    legal = np.ones((N, 2), bool)
    legal[:, 1] = np.arange(N) % 3 > 0
    at = lambda i, reward, ended: TimeStep(
        seen(i), reward, ended, no, no, legal_actions={"b": legal}, alive=alive
    )
    action = {"a": RNG.integers(0, 2, N), "b": np.zeros(N, int)}
    reward = RNG.normal(size=N).astype(np.float32)
    return Transition(
        at(0, 0 * reward, no), action, at(1, reward, RNG.random(N) < 0.3), (), {}
    ), legal


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dead", [True, False])
def test_the_sum_regresses_on_the_sum_of_the_best(double, dead):
    x, legal = batch(dead)
    table, frozen = RNG.normal(size=(2, 4 * N, 2)).astype(np.float32)
    of = lambda rows: {
        agent: (lambda timestep: rows[timestep.observation][..., None]) for agent in AGENTS
    }
    net = stub(of(frozen), {"discount": 0.9}, **of(table))
    recipe = vdn.recipe(one_step(), vdn.Config(double=double))
    loss = losses_of(recipe)["team_loss"](net, x).value
    value, following = np.zeros(N), np.zeros(N)
    for i, agent in enumerate(AGENTS):
        alive = x.timestep.alive[:, i] if dead else 1
        here, there = x.observation[agent], x.next_observation[agent]
        value += alive * table[here, x.action[agent]]
        chooser = np.where(
            legal if agent == "b" else True, (table if double else frozen)[there], -1e9
        )
        following += alive * frozen[there, chooser.argmax(1)]
    target = x.reward + 0.9 * ~x.terminated * following
    np.testing.assert_allclose(loss, 0.5 * (value - target) ** 2, rtol=1e-4, atol=1e-5)


def test_the_mixed_value_never_falls_when_an_agents_rises():
    mixer = MonotonicMixer(8)
    state, values = jnp.asarray(RNG.normal(size=(64, 5))), jnp.asarray(RNG.normal(size=(64, 3)))
    params = mixer.init(random.key(1), state, values)
    slope = jax.grad(lambda v: mixer.apply(params, state, v).sum())(values)
    assert float(slope.min()) >= 0 and float(slope.max()) > 0.01
    moved = mixer.apply(params, state + 1, values) - mixer.apply(params, state, values)
    assert float(jnp.abs(moved).min()) > 0


@pytest.mark.parametrize("normalize_state", [False, True])
def test_the_mixed_value_of_a_far_state_is_bounded_only_with_a_normalized_state(normalize_state):
    mixer = MonotonicMixer(8, normalize_state)
    state, values = jnp.asarray(RNG.normal(size=(64, 5))), jnp.asarray(RNG.normal(size=(64, 3)))
    params = mixer.init(random.key(1), state, values)
    near, far = (jnp.abs(mixer.apply(params, c * state, values)).mean() for c in (1, 1000))
    assert (far < 1.1 * near) == normalize_state


def learn_values(builder):
    """The team's values of the four joint actions, learned from random play."""
    settings = {
        "num_envs": 64, "num_steps": 1, "updates": 8, "batch_size": 64, "warmup": 64,
        "learning_rate": 1e-2, "exploration.start": 1.0, "exploration.end": 1.0, "period": 5,
    }  # fmt: skip
    env = one_step()
    algorithm = builder(env, settings)
    run = start(algorithm, random.key(2))
    run, _ = jax.jit(lambda run: train(algorithm, run, 200))(run)
    parts = run.state.agent.parts
    recipe = builder.recipe(env, algorithm.config)
    apply = lambda name, *x: recipe.parts[name].apply(parts[name].params, *x)
    timestep = example_timestep(env)
    seen = jax.tree.map(jnp.ones_like, timestep.observation)
    q = {
        agent: apply(agent, dataclasses.replace(timestep, observation=seen[agent], privileged=None))
        for agent in AGENTS
    }
    both = jnp.stack(
        [jnp.stack([q["a"][0, i, 0], q["b"][0, j, 0]]) for i in (0, 1) for j in (0, 1)]
    )
    if builder is vdn:
        return np.asarray(both.sum(-1)).reshape(2, 2)
    return np.asarray(apply("mixer", jnp.ones((4, 1)), both)).reshape(2, 2)


@pytest.mark.slow
def test_a_sum_fits_the_nearest_sum_and_a_monotonic_network_the_payoff():
    sums = PAYOFF.mean(0) + PAYOFF.mean(1)[:, None] - PAYOFF.mean()  # least squares
    np.testing.assert_allclose(learn_values(vdn), sums, atol=0.35)
    np.testing.assert_allclose(learn_values(qmix), PAYOFF, atol=0.15)
    assert np.abs(sums - PAYOFF).min() > 1  # so that the two differ everywhere


def test_bad_environments_are_refused():
    for builder, env, said in (
        (vdn, envs.make("cartpole"), "needs agents that act at the same time"),
        (vdn, envs.make("simple_tag", actions="discrete"), "rewards 4 agents separately"),
        (vdn, envs.make("simple_spread"), "cannot act"),
    ):
        with pytest.raises(UserError, match=said):
            builder(env)
    blind = dataclasses.replace(one_step(), reset=lambda key, params: (
        jnp.zeros(()), timesteps.first({a: jnp.ones(1) for a in AGENTS})))  # fmt: skip
    with pytest.raises(UserError, match="The mixing network of qmix sees the state"):
        qmix(blind)
    assert agent_names(one_step()) == AGENTS and state_view(example_timestep(one_step()))
