"""Dreamer 4: who learns in which phase, from what, and what it never sees."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents.planning import old_dreamer4 as d
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.classic import pendulum
from jaxrl.envs.pixels.catch import catch

ENV = catch(rows=4, columns=3)
T, B = 3, 4
CONFIG = d.Config(width=8, layers=1, hidden=(8,), levels=4, context=3, steps=2, horizon=2, bins=5)


@functools.cache
def batch():
    """Episodes of random frames; the first ends after two steps; two tell their actions."""
    keys = jax.random.split(random.key(0), 4)
    frames = jax.random.bernoulli(keys[0], 0.5, (T + 1, B, 4, 3, 1))
    mask = jnp.ones((T, B), bool).at[2, 0].set(False)
    ends = jnp.zeros((T, B), bool).at[1, 0].set(True).at[2, 1:].set(True)
    no = jnp.zeros((T, B), bool)
    reward = jax.random.normal(keys[1], (T, B))
    step = lambda x, ended, first: TimeStep(x, reward, ended, no, first)
    told = jnp.broadcast_to(jnp.arange(B) < 2, (T, B))
    transitions = Transition(
        step(frames[:-1], no, no.at[0].set(True)),
        jax.random.randint(keys[2], (T, B), 0, 3),
        step(frames[1:], ends, no),
        (),
        {"labelled": told},
    )
    return Batch(transitions, jnp.float32(0), mask=mask)


@functools.cache
def programs():
    first, second = d.agents(ENV, CONFIG)
    hyper = {k: jnp.asarray(v) for k, v in first.hyper.items()}
    # Values that are all 0 would have no gradient to be told apart by.
    return jax.jit(first.init)(random.key(1), hyper), jax.jit(first.update), jax.jit(second.update)


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves)


def replaced(**changes):
    b = batch()
    return dataclasses.replace(b, transitions=dataclasses.replace(b.transitions, **changes))


def test_each_phase_learns_its_own():
    state, learn_world, improve = programs()
    after, info = learn_world(state, batch(), random.key(2))
    assert not same(state.model, after.model) and not same(state.policy, after.policy)
    assert same(state.value, after.value) and same(after.prior, after.policy)
    assert all(np.isfinite(x) for x in info.metrics.values())
    begun = after
    after, info = improve(begun, batch(), random.key(3))
    assert same(begun.model, after.model) and same(begun.prior, after.prior)
    assert not same(begun.policy, after.policy) and not same(begun.value, after.value)
    assert all(np.isfinite(x) for x in info.metrics.values())
    assert info.metrics["prior_kl"] == 0  # where the policy is the prior still


def test_actions_that_nobody_told_are_never_seen():
    state, learn_world, improve = programs()
    action = batch().transitions.action
    hidden, told = action.at[:, 2:].add(1) % 3, action.at[:, :2].add(1) % 3
    for update in (learn_world, improve):
        plain = update(state, batch(), random.key(2))
        assert same(plain, update(state, replaced(action=hidden), random.key(2)))
        assert not same(plain, update(state, replaced(action=told), random.key(2)))
    # With `conditioned` off the model is not told them either, while cloning is.
    off = dataclasses.replace(state, hyper={**state.hyper, "conditioned": jnp.float32(0)})
    _, info = learn_world(off, batch(), random.key(2))
    _, other = learn_world(off, replaced(action=told), random.key(2))
    assert info.metrics["frame_loss"] == other.metrics["frame_loss"]
    assert info.metrics["cloning_loss"] != other.metrics["cloning_loss"]


def test_nothing_after_an_episodes_end_is_learnt_from():
    state, learn_world, improve = programs()
    t = batch().transitions
    put = lambda timestep: dataclasses.replace(
        timestep,
        observation=timestep.observation.at[2, 0].set(True),
        reward=timestep.reward.at[2, 0].set(50.0),
    )
    changed = replaced(next_timestep=put(t.next_timestep), action=t.action.at[2, 0].set(2))
    for update in (learn_world, improve):
        assert same(update(state, batch(), random.key(2)), update(state, changed, random.key(2)))


def test_outcomes_belong_to_the_successor_and_cloning_does_not_see_it():
    state, learn_world, _ = programs()
    jolt = lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape)
    state = dataclasses.replace(state, model=jax.tree.map(jolt, state.model))
    metrics = lambda b: learn_world(state, b, random.key(2))[1].metrics
    plain, t = metrics(batch()), batch().transitions
    before = dataclasses.replace(t.timestep, reward=t.timestep.reward + 1)
    assert metrics(replaced(timestep=before)) == plain
    # The last frame of an episode shows how it ended, and comes after all that was done.
    cells = t.next_timestep.observation
    after = dataclasses.replace(t.next_timestep, observation=cells.at[-1].set(~cells[-1]))
    changed = metrics(replaced(next_timestep=after))
    assert all(changed[name] != plain[name] for name in ("reward_loss", "going_on_loss"))
    assert changed["cloning_loss"] == plain["cloning_loss"]


def test_a_policy_that_acts_remembers_the_frames_of_its_episode():
    agent = d.agents(ENV, CONFIG)[0]
    state, *_ = programs()
    act = jax.jit(agent.act, static_argnums=4)
    memory, key = agent.memory(B), random.key(4)
    np.testing.assert_array_equal(memory.action, 3)
    for t in range(2):
        timestep = jax.tree.map(lambda x, t=t: x[t], batch().transitions.timestep)
        action, memory, _ = act(state, timestep, memory, key, False)
        np.testing.assert_array_equal(memory.action, action)
        np.testing.assert_array_equal(memory.cache.position, t + 1)


def test_bad_settings():
    for changes, what in (
        ({"levels": 6}, "levels must be a power of two, got 6"),
        ({"steps": 8}, "must fit levels=4"),
        ({"width": 9}, "does not divide"),
    ):
        with pytest.raises(UserError, match=what):
            d.agents(ENV, dataclasses.replace(CONFIG, **changes))
    with pytest.raises(UserError, match="needs a Discrete"):
        d.agents(pendulum.pendulum(), CONFIG)
