"""Dreamer: what its losses see, what stays untouched, and imagined ends."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents.planning import old_dreamer as d
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Policy
from jaxrl.envs.pixels.catch import catch
from jaxrl.networks import recurrent_world_model as world
from jaxrl.networks.imagination import symexp_atoms
from tests.contracts.structure import check_structure

CONFIG = d.Config(
    num_envs=2, num_steps=4, updates=1, capacity=64, warmup=16, batch_size=2, length=4,
    horizon=3, deterministic=5, groups=2, classes=3, hidden=(8,), bins=5,
)  # fmt: skip
ENV = catch(rows=3, columns=3)


@functools.cache
def trained():
    """The state before and after one update, of an agent whose actor and critic have no say in the
    model's parameters, and whose batch is known."""
    algorithm = d.dreamer(ENV, CONFIG)
    agent, source = algorithm.agent, algorithm.source

    @jax.jit
    def run(key, hyper):
        state = agent.init(key, hyper)
        policy = Policy(agent.act, agent.memory, state)
        held = source.init(key, hyper, policy)
        held, fresh, _ = source.collect(held, policy, key)
        batch = source.sample(held, fresh, key)
        after, info = agent.update(state, batch, key)
        return batch, state, after, info

    def go(**changes):
        return run(
            random.key(0), {**algorithm.hyper, **{k: jnp.float32(v) for k, v in changes.items()}}
        )

    return go


def moved(a, b):
    return [
        bool((x != y).any()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]


def test_behaviour_and_model_are_learnt_apart():
    _, before, after, info = trained()(behaviour_learning_rate=0.0)
    assert not any(moved(before.behaviour, after.behaviour)) and any(
        moved(before.model, after.model)
    )
    _, before, after, _ = trained()(learning_rate=0.0)
    assert not any(moved(before.model, after.model))
    assert any(moved(before.behaviour["actor"], after.behaviour["actor"]))
    assert any(moved(before.behaviour["critic"], after.behaviour["critic"]))
    # The model's step does not depend on the behaviour's losses at all.
    _, _, plain, _ = trained()()
    _, _, other, _ = trained()(entropy_weight=10.0, discount=0.1)
    assert not any(moved(plain.model, other.model))
    assert any(moved(plain.behaviour, other.behaviour))
    assert all(np.isfinite(x) for x in info.metrics.values())


def test_the_slow_critic_and_the_range_are_running_averages():
    _, before, after, _ = trained()(slow_decay=0.75)
    mixed = jax.tree.map(
        lambda slow, new: 0.75 * slow + 0.25 * new, before.slow, after.behaviour["critic"]
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), after.slow, mixed)
    _, _, after, _ = trained()(range_decay=1.0)
    assert after.range == before.range == 0


@functools.cache
def loss():
    """The model's losses of transitions, where no head is 0."""
    _, state, _, _ = trained()()
    model = world.RecurrentWorldModel(ENV.observation_space, ENV.action_space, 9, (8,), 5, 2, 3, 5)
    atoms = symexp_atoms(5, CONFIG.symlog_range)
    params = jax.tree.map(
        lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), state.model
    )
    apply = functools.partial(model.apply, params)

    @jax.jit
    def means(t):
        values = world.model_loss(model, apply, t, atoms, random.key(1))[1]
        return {name: x.mean() for name, x in values.items()}

    return means


def test_the_loss_knows_cells_and_that_cuts_are_no_ends():
    batch = trained()()[0]
    plain = loss()(batch.transitions)
    ended = batch.transitions.next_timestep
    assert ended.terminated.any() and not ended.terminated.all()
    cut = dataclasses.replace(
        ended, terminated=jnp.zeros_like(ended.terminated), truncated=ended.terminated
    )
    cut = loss()(dataclasses.replace(batch.transitions, next_timestep=cut))
    assert cut["continue_loss"] != plain["continue_loss"]
    for name in ("observation_loss", "latent_loss", "reward_loss"):
        assert cut[name] == plain[name]
    # 9 cells of an untrained model: about a bit each, for every successor and the first steps.
    assert 6 * np.log(2) < plain["observation_loss"] < 20 * np.log(2)


def test_reward_and_end_belong_to_the_successor():
    t = trained()()[0].transitions
    plain = loss()(t)
    # The reward of the step before is nothing to learn from, that of this step is.
    before = dataclasses.replace(t.timestep, reward=t.timestep.reward + 1)
    assert loss()(dataclasses.replace(t, timestep=before)) == plain
    after = dataclasses.replace(t.next_timestep, reward=t.next_timestep.reward + 1)
    changed = loss()(dataclasses.replace(t, next_timestep=after))
    assert {k for k in plain if changed[k] != plain[k]} == {"reward_loss"}
    # They are read off where the last step led, which nothing else shows.
    # The latents there are samples, through which gradients flow all the same.
    for name in ("reward_loss", "continue_loss"):

        def of(cells, name=name):
            after = dataclasses.replace(t.next_timestep, observation=cells)
            return loss()(dataclasses.replace(t, next_timestep=after))[name]

        assert (jax.grad(of)(t.next_timestep.observation.astype(jnp.float32))[-1] != 0).any()


def test_binary_features_are_known_by_their_kind():
    space = {"cells": Box(0, 1, (2, 2), jnp.bool_), "far": Box(-1, 1, (2,)), "which": Discrete(3)}
    expected = [True] * 4 + [False] * 2 + [True] * 3 + [False]  # the last is a goal's
    np.testing.assert_array_equal(world.binary_features(space, 10), expected)


def test_structure_and_bad_settings():
    check_structure(d.dreamer(ENV, CONFIG))
    assert d.dreamer(ENV, CONFIG) is d.dreamer(ENV, config=CONFIG)
    for changes, what in (
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"bins": 4}, "bins must be odd"),
        ({"hidden": (8, 0)}, "hidden is"),
        ({"length": 400}, "capacity is 64"),
    ):
        with pytest.raises(UserError, match=what):
            d.dreamer(ENV, d.Config(**{**vars(CONFIG), **changes}))
