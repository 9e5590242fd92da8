"""MADDPG: losses against NumPy, the gradient through discrete actions, and a game's equilibrium."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.maddpg import maddpg, straight_through
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch, Environment, TimeStep, Transition
from jaxrl.envs import timesteps
from tests.kit.stub import losses_of, stub

RNG = np.random.default_rng(0)
N = 24
AGENTS = ("a", "b")


def quadratic(agents=AGENTS):
    """A game of one step in which both play numbers: a is paid -(x - y)^2 and b minus
    (y - 0.5 - x / 2)^2, so that x = y = 1 would be the equilibrium; bounds are +-2."""

    def step(key, state, action, params):
        x, y = action["a"][0], action["b"][0]
        reward = jnp.stack([-jnp.square(x - y), -jnp.square(y - 0.5 - x / 2)])
        return state, timesteps.following({a: jnp.ones(1) for a in agents}, reward, terminated=True)

    return Environment(
        "quadratic",
        lambda key, params: (
            jnp.zeros(()), timesteps.first({a: jnp.ones(1) for a in agents}, jnp.zeros(2))),
        step,
        (),
        {a: Box(0.0, 1.0, (1,)) for a in agents},
        {a: Box(-2.0, 2.0, (1,)) for a in agents},
        1,
        agents=agents,
    )  # fmt: skip


def test_critics_see_all_and_learn_from_their_agents_reward():
    recipe = maddpg.recipe(quadratic(), maddpg.Config())
    number, action = (
        np.arange(N),
        {a: RNG.uniform(-2, 2, (N, 1)).astype(np.float32) for a in AGENTS},
    )
    no, ended = np.zeros(N, bool), RNG.random(N) < 0.3
    reward = RNG.normal(size=(N, 2)).astype(np.float32)
    alive = np.stack([~no, RNG.random(N) < 0.5], -1)
    at = lambda i, r, end: TimeStep(
        dict.fromkeys(AGENTS, i * N + number), r, end, no, no, alive=alive
    )
    x = Transition(at(0, reward, no), action, at(1, reward, ended), (), {})
    policy = {a: RNG.uniform(-2, 2, (2 * N, 1)).astype(np.float32) for a in AGENTS}
    base = RNG.normal(size=(2, 2 * N)).astype(np.float32)

    def critic(table, agent):
        """A value of the rows of both agents' observations and of both actions, in half-widths."""
        scale = {"a": 1.0, "b": 10.0} if agent == "a" else {"a": 5.0, "b": -2.0}
        return lambda timestep, action: (
            table[timestep.observation["a"]] + sum(scale[n] * action[n][:, 0] for n in AGENTS)
        )

    actors = {a: (lambda t, a=a: jnp.asarray(policy[a])[t.observation]) for a in AGENTS}
    critics = lambda table: {f"{a}_critic": critic(table, a) for a in AGENTS}
    net = stub(
        actors | critics(base[1]), {"discount": 0.9, "logit_penalty": 1e-3},
        key=lambda name="": random.key(0), **actors, **critics(base[0]),
    )  # fmt: skip
    losses = losses_of(recipe)
    for index, agent in enumerate(AGENTS):
        value = critic(base[0], agent)(x.timestep, {a: y / 2 for a, y in action.items()})
        target_action = {a: policy[a][N + number] / 2 for a in AGENTS}
        after = critic(base[1], agent)(x.next_timestep, target_action)
        goes_on = ~ended & alive[:, index]
        target = reward[:, index] + 0.9 * goes_on * after
        loss = losses[f"{agent}_critic_loss"](net, x).value
        np.testing.assert_allclose(loss, 0.5 * (value - target) ** 2, rtol=1e-4, atol=1e-4)
        own = {a: (policy if a == agent else action)[a][number] / 2 for a in AGENTS}
        expected = -critic(base[0], agent)(x.timestep, own)
        np.testing.assert_allclose(losses[f"{agent}_loss"](net, x), expected, rtol=1e-4, atol=1e-4)


def test_the_dead_are_masked_in_their_own_losses_alone():
    recipe, no, masks = maddpg.recipe(quadratic(), maddpg.Config()), np.zeros(N, bool), {}
    alive = RNG.random((N, 2)) < 0.5
    step = TimeStep(dict.fromkeys(AGENTS, no), np.zeros((N, 2)), no, no, no, alive=alive)
    x = Transition(step, dict.fromkeys(AGENTS, no), step, (), {})

    def descend(loss, batch, *, mask):
        masks[loss.name] = mask
        return net

    net = stub(descend=descend, update_targets=lambda *_: net)
    counts = RNG.random(N) < 0.7
    for mask in (None, counts):
        recipe.update(net, Batch(x, jnp.float32(0), mask=mask))
        both = alive if mask is None else alive & mask[:, None]
        for index, agent in enumerate(AGENTS):
            for name in (f"{agent}_loss", f"{agent}_critic_loss"):
                np.testing.assert_array_equal(masks[name], both[:, index])
    immortal = dataclasses.replace(x, timestep=dataclasses.replace(step, alive=None))
    recipe.update(net, Batch(immortal, jnp.float32(0)))
    assert set(masks.values()) == {None}


def test_discrete_actions_are_drawn_by_their_probabilities_and_have_the_softmax_gradient():
    logits = jnp.asarray([0.3, -1.0, 0.8])
    keys = jax.random.split(random.key(1), 4000)
    drawn = jax.vmap(lambda key: straight_through(logits, key))(keys)
    np.testing.assert_allclose(jnp.sort(drawn, -1)[:, :2], 0, atol=1e-6)
    np.testing.assert_allclose(drawn.mean(0), jax.nn.softmax(logits), atol=0.03)
    noise = jax.random.gumbel(keys[0], (3,))
    slope = jax.jacobian(lambda x: straight_through(x, keys[0]))(logits)
    np.testing.assert_allclose(slope, jax.jacobian(jax.nn.softmax)(logits + noise), rtol=1e-5)


@pytest.mark.slow
def test_two_agents_find_the_equilibrium_of_their_game():
    env = quadratic()
    settings = {
        "num_envs": 64, "num_steps": 1, "updates": 8, "batch_size": 64, "warmup": 512,
        "capacity": 4096, "noise": 0.5, "critic.learning_rate": 1e-2, "actor.learning_rate": 5e-3,
        "rate": 0.05, "hidden": (32,),
    }  # fmt: skip
    algorithm = maddpg(env, settings)
    run = start(algorithm, random.key(3))
    run, _ = jax.jit(lambda run: train(algorithm, run, 250))(run)
    policy = algorithm.policy(run.state)
    timestep = jax.tree.map(lambda x: x[None], env.reset(random.key(4), ())[1])
    action = policy.act(policy.state, timestep, (), random.key(5), True)[0]
    np.testing.assert_allclose([action["a"][0, 0], action["b"][0, 0]], 1.0, atol=0.25)


def test_bad_environments_are_refused():
    with pytest.raises(UserError, match="needs agents that act at the same time"):
        maddpg(envs.make("cartpole"))
    wide = dataclasses.replace(
        quadratic(), action_space={a: Box(-np.inf, np.inf, (1,)) for a in AGENTS}
    )
    with pytest.raises(UserError, match="maddpg's agent 'a' cannot act in"):
        maddpg(wide)
