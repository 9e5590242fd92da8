"""Tests of state-dependent noise: when it is drawn anew, what it is a function of, and learning."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control.sac import sac
from jaxrl.algorithms.continuous_control.tqc import tqc
from jaxrl.algorithms.policy_gradient.a2c import Config, a2c
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.algorithms.policy_gradient.trpo import trpo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.train import start, train
from jaxrl.core.types import Batch
from jaxrl.kit import Part, Recipe, acting, exploration
from jaxrl.networks.heads import PolicyHead, StateDependentNormal, normal

ENVS, FEATURES, SIZE = 3, 4, 2
SPACE = Box(-2.0, 2.0, (SIZE,))
RNG = np.random.default_rng(0)
DEVIATION = jnp.exp(jnp.float32(RNG.normal(size=(FEATURES, SIZE))))
MEAN = jnp.float32(RNG.normal(size=(ENVS, SIZE)))


def policy_in(features):
    return StateDependentNormal(SPACE, MEAN, features, DEVIATION)


def noise_of(policy, memory, updates, interval, seed, greedy=False):
    """Return the noise of an action in half-widths, and the memory."""
    net = types.SimpleNamespace(updates=jnp.int32(updates))
    key = random.key(seed)
    action, memory = exploration.choose_with_noise(net, policy, memory, interval, key, greedy)
    return np.asarray((action - policy.mode()) / 2), memory


def blank():
    return exploration.noisy_memory(lambda n: (), (FEATURES, SIZE))(ENVS)


def test_noise_is_the_same_linear_function_of_the_features_until_it_is_drawn_anew():
    one, other = (jnp.float32(RNG.normal(size=(ENVS, FEATURES))) for _ in range(2))
    first, memory = noise_of(policy_in(one), blank(), 7, 0, seed=1)
    assert np.abs(first).min() > 0
    second, memory = noise_of(policy_in(other), memory, 7, 0, seed=2)
    again, memory = noise_of(policy_in(one), memory, 7, 0, seed=3)
    both, memory = noise_of(policy_in(one - 2 * other), memory, 7, 0, seed=4)
    np.testing.assert_array_equal(again, first)
    np.testing.assert_allclose(both, first - 2 * second, atol=1e-5)
    after_an_update, _ = noise_of(policy_in(one), memory, 8, 0, seed=5)
    assert np.abs(after_an_update - first).min() > 1e-4


def test_noise_is_drawn_anew_after_the_interval():
    policy, memory = policy_in(jnp.ones((ENVS, FEATURES))), blank()
    drawn = []
    for step in range(7):
        noise, memory = noise_of(policy, memory, 0, 3, seed=step)
        drawn.append(noise)
    for step in range(1, 7):
        assert (drawn[step] == drawn[step - 1]).all() == (step % 3 != 0)


def test_noise_is_drawn_anew_where_an_episode_starts_and_is_none_if_greedy():
    policy, empty = policy_in(jnp.ones((ENVS, FEATURES))), blank()
    first, memory = noise_of(policy, empty, 0, 0, seed=0)
    starts = jnp.array([False, True, False])
    select = lambda new, old: jnp.where(starts.reshape(-1, *(1,) * (old.ndim - 1)), new, old)
    restarted = jax.tree.map(select, empty, memory)
    later, _ = noise_of(policy, restarted, 0, 0, seed=1)
    np.testing.assert_array_equal((later == first).all(-1), ~np.asarray(starts))
    none, same = noise_of(policy, memory, 5, 1, seed=2, greedy=True)
    assert (none == 0).all() and same is memory


def test_actions_over_all_matrices_have_the_distribution_of_the_policy():
    policy = policy_in(jnp.float32(RNG.normal(size=(ENVS, FEATURES))))
    normals = jax.random.normal(random.key(3), (40_000, ENVS, FEATURES, SIZE))
    actions = np.asarray(jax.vmap(policy.explore)(normals))
    np.testing.assert_allclose(actions.mean(0), policy.mode(), atol=0.1)
    np.testing.assert_allclose(actions.std(0), policy.distribution.scale, rtol=0.02)
    correlation = np.corrcoef(actions[:, 0, 0], actions[:, 0, 1])[0, 1]
    assert abs(correlation) < 0.02


WINDOW = {"num_envs": 4, "num_steps": 8, "gsde.enabled": True, "gsde.log_std": -1.0}
REPLAYED = {"num_envs": 4, "num_steps": 2, "updates": 2, "batch_size": 8, "warmup": 8,
            "gsde.enabled": True, "gsde.log_std": -1.0}  # fmt: skip
EPOCHS = {"epochs": 2, "minibatches": 2}
SMALL = {
    "ppo": (ppo, WINDOW | EPOCHS | {"hidden": (6, 5)}),
    "ppo with a memory": (ppo, WINDOW | EPOCHS | {"hidden": (5,), "recurrent": 3}),
    "a2c, linear": (a2c, WINDOW | {"hidden": ()}),
    "trpo": (trpo, WINDOW | EPOCHS | {"hidden": (6, 5)}),
    "sac": (sac, REPLAYED | {"hidden": (6, 5)}),
    "tqc": (tqc, REPLAYED | {"torso.hidden": (6, 5), "critic.hidden": (4,)}),
}


def deviations(run):
    """Return the logarithms of the standard deviations of the noise matrix's entries."""
    named = jax.tree_util.tree_leaves_with_path(run.state)
    found = [x for path, x in named if jax.tree_util.keystr(path[-1:]) == "['log_std']"]
    return np.asarray(found[0])  # the optimizer has others


@pytest.mark.parametrize("name", SMALL)
def test_agents_learn_the_deviations_of_their_noise(name):
    make, settings = SMALL[name]
    algorithm = make(envs.make("pendulum"), settings)
    run = start(algorithm, random.key(0))
    later, _ = train(algorithm, run, 3)
    assert deviations(run).shape == (3 if name == "a2c, linear" else 5, 1)
    assert (deviations(run) == -1.0).all()
    assert np.abs(deviations(later) + 1.0).min() > 1e-5
    assert np.isfinite(deviations(later)).all()


@pytest.mark.parametrize("make", [a2c, ppo, trpo])
def test_an_agent_repeats_its_noise_until_its_next_update(make):
    env = envs.make("pendulum")
    agent = make.agent(env, WINDOW | {"minibatches": 2} if make is not a2c else WINDOW)
    state = agent.init(random.key(0), agent.hyper)
    timestep = jax.tree.map(lambda x: jnp.repeat(x, 4, 0), example_timestep(env))
    timestep = dataclasses.replace(timestep, observation=timestep.observation + 0.5)
    act = lambda state, memory, seed, greedy=False: agent.act(
        state, timestep, memory, random.key(seed), greedy
    )
    first, memory, extras = act(state, agent.memory(4), 1)
    again, memory, _ = act(state, memory, 2)
    np.testing.assert_array_equal(again, first)
    assert len(np.unique(first)) == 4  # each environment has a matrix of its own
    updated = dataclasses.replace(state, updates=state.updates + 1)
    assert np.abs(act(updated, memory, 3)[0] - first).min() > 1e-5
    greedy, kept, _ = act(state, memory, 4, greedy=True)
    assert len(np.unique(greedy)) == 1
    assert (kept.noise.normals == memory.noise.normals).all()
    assert extras["log_prob"].shape == (4,)


def test_the_update_sees_the_memory_of_the_network_alone():
    seen = []
    part = Part(
        PolicyHead(SPACE, deviation="of_noise"), (jnp.zeros((1, FEATURES)),), Config().optimizer
    )
    plain = Recipe(
        {"actor": part}, acting.sample_with_log_prob("actor"), (), lambda *x: seen.append(x)
    )
    recipe = exploration.remember_noise(plain, "actor")
    memory = recipe.memory(2)
    assert memory.noise.normals.shape == (2, FEATURES, SIZE)
    recipe.update("net", Batch(None, None, memory=memory, tail=("now", memory)))
    [(net, batch)] = seen
    assert net == "net" and batch.memory == () and batch.tail == ("now", ())


@pytest.mark.parametrize("make", [a2c, ppo, trpo])
def test_discrete_actions_have_no_noise_that_is_linear_in_features(make):
    with pytest.raises(UserError, match="needs actions in a Box; 'cartpole' has"):
        make(envs.make("cartpole"), {"gsde.enabled": True})


def test_a_network_of_the_users_must_give_what_noise_is_added_to():
    with pytest.raises(UserError, match="StateDependentNormal"):
        noise_of(normal(SPACE, MEAN, 1.0), blank(), 0, 0, seed=0)
