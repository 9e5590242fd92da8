"""Offline data beside PPO: whole episodes of numbered levels, and cloning after PPO's steps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import offline_data_procgen as beside
from jaxrl.algorithms.imitation import offline_data_procgen_pretraining as before
from jaxrl.algorithms.imitation.shared.trajectories import Trajectories, cloning_loss
from jaxrl.core import hyper, random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit.stages import stages
from jaxrl.networks.heads import categorical
from tests.kit.stub import stub, transitions

ENV = envs.make("door_key", size=5)
SMALL = {"trajectories": 4, "levels": 2, "hidden": (8,)}


@functools.cache
def demonstrate(skill=1.0):
    return Trajectories(trajectories=4, levels=3, skill=skill, seed=1).load(ENV)


def episodes(x):
    ends = np.flatnonzero(x.done)
    assert x.first[0] and x.done[-1] and (x.first[ends[:-1] + 1]).all()
    assert x.first.sum() == len(ends)
    return np.split(np.arange(len(x.reward)), ends[:-1] + 1)


def test_demonstrations_are_whole_episodes_of_the_expert_in_the_numbered_levels():
    x = demonstrate()
    assert isinstance(x.reward, np.ndarray) and x.timestep.privileged is None
    rows = episodes(x)
    assert len(rows) == 4

    @jax.jit
    def play(level):
        params = dataclasses.replace(ENV.params, level=level)
        state, timestep = ENV.reset(random.key(9), params)

        def body(carry, _):
            state, timestep = carry
            action = ENV.expert(state, params)
            state, after = ENV.step(random.key(0), state, action, params)
            return (state, after), (timestep.observation, action, after.reward)

        return jax.lax.scan(body, (state, timestep), None, 40)[1]

    for number, level in enumerate((0, 1, 2, 0)):  # each level in turn
        own = rows[number]
        observation, action, reward = jax.device_get(play(jnp.int32(level)))
        np.testing.assert_array_equal(x.observation[own], observation[: len(own)])
        np.testing.assert_array_equal(x.action[own], action[: len(own)])
        assert x.reward[own[-1]] == reward[len(own) - 1] > 0.5 and not x.reward[own[:-1]].any()


@pytest.mark.slow
def test_a_player_of_less_skill_takes_other_actions():
    lengths = [len(own) for own in episodes(demonstrate(0.3))]
    assert np.mean(lengths) > 1.5 * np.mean([len(own) for own in episodes(demonstrate())])


def test_cloning_is_the_likelihood_of_demonstrated_actions():
    table = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    net = stub(actor_critic=lambda s, m: (categorical(jnp.asarray(table)[s.observation]), 0, m))
    x = transitions(12, 3)
    log_probs = table - np.log(np.exp(table).sum(-1, keepdims=True))
    np.testing.assert_allclose(cloning_loss(net, x), -log_probs[np.arange(12), x.action], rtol=1e-5)
    assert cloning_loss.parts == ("actor_critic",)  # PPO's network, and so its optimizer


@pytest.mark.parametrize("epochs", [1, 0])
def test_cloning_follows_ppos_steps_on_the_demonstrated_steps(epochs):
    t, b = 4, 6
    no, number = np.zeros((t, b), bool), np.arange(t * b).reshape(t, b)
    at = lambda i: TimeStep(number + i, number * 0.1, no, no, no)
    there = Transition(at(100), number, at(200), (), {})
    x = Transition(at(0), number, at(50), (), {"log_prob": number * 0.1, "expert": there})
    seen = []

    def run(settings, data, step, **options):
        seen.append((settings, data.x))
        return net

    net = stub(
        hyper={"discount": 0.9, "gae_lambda": 0.8, "passes.target_kl": 0.02},
        actor_critic=lambda s, m, method="": (None, s.observation * 1.0, m),
        extra=type("Around", (), {"inner": (), "own": ()})(),
        metrics={},
        epochs=run,
        report=lambda **metrics: net,
        replace=lambda **changes: net,
        learning_rate=lambda part: 0.0,
    )
    config = settings.replace(beside.Config(), SMALL | {"cloning.epochs": epochs})
    recipe = beside.recipe(ENV, settings.Static(config))
    recipe.update(net, Batch(x, jnp.float32(0)))
    assert [s.minibatches for s, _ in seen] == [4, 8][: 1 + epochs]  # PPO's, then cloning's
    np.testing.assert_array_equal(seen[0][1].timestep.observation, number)
    if epochs:
        np.testing.assert_array_equal(seen[1][1].observation, number + 100)
        np.testing.assert_array_equal(seen[1][1].action, number)


@pytest.mark.slow
def test_ppo_goes_on_from_what_was_cloned():
    first = before.offline_data_procgen_pretraining(ENV, SMALL | {"batch_size": 8, "updates": 2})
    second = beside.offline_data_procgen(ENV, SMALL | {"num_envs": 2, "num_steps": 16})
    both = stages(first, 3, second)
    assert both.initial_env_steps == 6  # gradient steps
    assert first.agent is not None and second.agent is not None
    begun = [
        hyper.without_hyper(jax.eval_shape(x.agent.init, random.key(0), x.agent.hyper))
        for x in (first, second)
    ]
    assert jax.tree.map(jnp.shape, begun[0]) == jax.tree.map(jnp.shape, begun[1])


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("cartpole", {}, "parameter of 'cartpole'"),
        ("door_key", {"recurrent": 4}, "clones single steps; it must be 0"),
        ("door_key", {"normalization.observation": True}, "shows demonstrations as they are"),
        ("door_key", {"cloning.minibatches": 7}, "do not divide into minibatches=7"),
        ("baird", {}, "has no time limit, which the demonstrations"),
    ],
)
def test_what_cannot_be_demonstrated_is_refused(name, changes, says):
    env = ENV if name == "door_key" else envs.make(name)
    with pytest.raises(UserError, match=says):
        beside.offline_data_procgen(env, SMALL | changes)
