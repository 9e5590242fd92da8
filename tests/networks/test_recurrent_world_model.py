"""The recurrent state-space model: filtering equals unrolling, and episodes stay independent."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import TimeStep, Transition
from jaxrl.networks.recurrent_world_model import RecurrentWorldModel

T, B, D, BOUNDARY = 6, 3, 4, 3  # stream 0 begins a new episode at step BOUNDARY


@functools.cache
def window():
    """Return random episodes; a step's successor is the next step, unless the episode ended."""
    keys = jax.random.split(random.key(0), 4)
    first = jnp.zeros((T, B), bool).at[BOUNDARY, 0].set(True)
    observation = jax.random.normal(keys[0], (T, B, D))
    last = jax.random.normal(keys[1], (T, B, D))
    ends = jnp.roll(first, -1, 0).at[-1].set(True)
    next_observation = jnp.where(ends[..., None], last, jnp.roll(observation, -1, 0))
    no = jnp.zeros((T, B), bool)

    def timestep(observation, first):
        return TimeStep(observation, jax.random.normal(keys[2], (T, B)), no, no, first)

    action = jax.random.randint(keys[3], (T, B), 0, 3)
    return Transition(timestep(observation, first), action, timestep(next_observation, no), (), {})


@functools.cache
def model():
    net = RecurrentWorldModel(
        Box(-1, 1, (D,)), Discrete(3), D, (8,), deterministic=5, groups=2, classes=3, bins=5
    )
    return net, jax.jit(net.init)(random.key(1), window())


@functools.cache
def unroll():
    net, params = model()
    return jax.jit(lambda w: net.apply(params, w, None, method="unroll"))(window())


def test_what_is_learned_from_is_what_acting_remembers():
    net, params = model()
    step = jax.jit(functools.partial(net.apply, params, method="filter"))
    latent, action = net.initial(B), jnp.zeros(B, jnp.int32)
    for t in range(T):
        timestep = jax.tree.map(lambda x, t=t: x[t], window().timestep)
        if t == 0:  # a window begins with a fresh latent
            timestep = TimeStep(
                timestep.observation, timestep.reward, timestep.terminated, timestep.truncated,
                jnp.ones(B, bool),
            )  # fmt: skip
        latent = step(latent, action, timestep, None)
        before = jax.tree.map(lambda x, t=t: x[t], unroll().before)
        np.testing.assert_allclose(latent.features, before.features, rtol=1e-5, atol=1e-6)
        action = window().action[t]


def test_after_a_first_step_the_state_is_that_of_a_fresh_start():
    net, params = model()
    tail = jax.tree.map(lambda x: x[BOUNDARY:], window())
    fresh = jax.jit(lambda w: net.apply(params, w, None, method="unroll"))(tail)
    for part in ("before", "after"):
        whole, alone = getattr(unroll(), part), getattr(fresh, part)
        if part == "after":
            whole, alone = whole.latent, alone.latent
        np.testing.assert_allclose(whole.features[BOUNDARY:, 0], alone.features[:, 0], rtol=1e-5)
        # The other streams continue, so their past matters.
        assert np.abs(whole.features[BOUNDARY:, 1] - alone.features[:, 1]).max() > 1e-3


def test_later_losses_have_no_gradient_in_what_was_before_the_boundary():
    net, params = model()

    w = window()

    def late(observation, next_observation, key):
        put = lambda timestep, x: TimeStep(
            x, timestep.reward, timestep.terminated, timestep.truncated, timestep.first
        )
        changed = Transition(
            put(w.timestep, observation), w.action, put(w.next_timestep, next_observation), (), {}
        )
        u = net.apply(params, changed, key, method="unroll")
        later = jax.tree.map(lambda x: x[BOUNDARY:], (u.before.features, u.after.posterior))
        return jnp.square(later[0]).sum((0, 2)) + jnp.square(later[1]).sum((0, 2, 3))

    gradient = jax.jit(jax.jacrev(late, argnums=(0, 1)))(
        w.timestep.observation, w.next_timestep.observation, random.key(2)
    )
    for stream, reaches in ((0, False), (1, True)):
        before = np.concatenate([g[stream, :BOUNDARY, stream] for g in gradient])
        assert (np.abs(before).max() > 0) == reaches
        assert np.abs(gradient[1][stream, BOUNDARY:, stream]).min(-1).max() > 0


def test_the_successor_of_an_episodes_last_step_is_seen_and_its_latent_is_not_carried_on():
    net, params = model()
    changed = window()
    last = changed.next_timestep.observation.at[BOUNDARY - 1, 0].add(1.0)
    after = TimeStep(
        last, changed.reward, changed.terminated, changed.truncated, changed.next_timestep.first
    )
    changed = Transition(changed.timestep, changed.action, after, (), {})
    u = jax.jit(lambda w: net.apply(params, w, None, method="unroll"))(changed)
    moved = np.abs(u.after.posterior - unroll().after.posterior).max((2, 3))
    assert moved[BOUNDARY - 1, 0] > 0 and (moved > 0).sum() == 1


def test_latents_are_one_hot_and_carry_the_gradient_of_the_probabilities():
    net, _ = model()
    logits = jnp.log(jnp.array([[[0.2, 0.5, 0.3], [0.7, 0.1, 0.2]]]))
    noise = jnp.zeros_like(logits)
    sample = net._sample(logits, noise)
    np.testing.assert_array_equal(sample[0], [0, 1, 0, 1, 0, 0])
    weight = jnp.arange(6.0)
    straight = jax.grad(lambda x: (net._sample(x, noise) * weight).sum())(logits)
    soft = jax.grad(lambda x: (jnp.exp(x).reshape(1, -1) * weight).sum())(logits)
    np.testing.assert_allclose(straight, soft, rtol=1e-6)
    draws = jax.vmap(lambda key: net._sample(logits, net._noise(key, (1,))))(
        jax.random.split(random.key(3), 4000)
    )
    np.testing.assert_allclose(draws.mean(0)[0], jnp.exp(logits).ravel(), atol=0.03)


@pytest.mark.parametrize("greedy", [True, False])
def test_without_a_key_the_latent_is_the_likeliest(greedy):
    net, params = model()
    timestep = jax.tree.map(lambda x: x[0], window().timestep)
    key = lambda i: None if greedy else random.key(i)
    draw = lambda i: net.apply(params, timestep, key(i), method="start").latent.stochastic
    same = all(np.array_equal(draw(0), draw(i)) for i in range(1, 8))
    assert same == greedy


def test_actions_are_read_as_the_environment_plays_them():
    """Clipped to the bounds of their box, and in half-widths around its center."""
    space = Box(-1.0, 3.0, (2,))
    net = RecurrentWorldModel(Box(-1, 1, (D,)), space, D, (8,), deterministic=5, bins=5)
    action = jnp.array([[-1.0, 3.0], [1.0, 2.0], [-7.0, 9.0]])
    np.testing.assert_array_equal(net._action(action), [[-1, 1], [0, 0.5], [-1, 1]])
    endless = net.clone(action_space=Box(-np.inf, np.inf, (2,)))
    np.testing.assert_array_equal(endless._action(action), action)
