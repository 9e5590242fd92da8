"""Two objects, of which an instruction names one: places, rewards, captions."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.trees import strong
from jaxrl.envs import check_environment, make
from jaxrl.envs.grids import goal_swap as module


@pytest.fixture(scope="module")
def env():
    return make("goal_swap")


def _reset(env, number, swapped):
    keys = jax.random.split(jax.random.key(0), number)
    return jax.vmap(env.reset, (0, None))(keys, strong(module.Params(swapped)))


def test_it_keeps_the_rules_of_environments(env):
    check_environment(env)


@pytest.mark.parametrize("swapped", [0.0, 1.0])
def test_the_named_object_is_where_the_parameter_says(env, swapped):
    state, timestep = _reset(env, 64, swapped)
    named, other = state.inner.objects[:, 0, 1], state.inner.objects[:, 1, 1]
    assert (named == (0 if swapped else 6)).all() and (other == (6 if swapped else 0)).all()
    colors = state.inner.colors
    assert (colors[:, 0] != colors[:, 1]).all() and len(set(colors[:, 0].tolist())) == 4
    np.testing.assert_array_equal(timestep.goal.argmax(-1), colors[:, 0])
    at = state.inner.objects[0, 0] + 1
    seen = timestep.observation[0, at[0], at[1]]
    np.testing.assert_array_equal(seen, module.COLORS[colors[0, 0]])


def test_the_expert_always_collects_the_named_object(env):
    state, _ = _reset(env, 128, 0.5)

    def body(carry, _):
        state, done, success = carry
        action = jax.vmap(env.expert, (0, None))(state, env.params)
        keys = jax.random.split(jax.random.key(1), 128)
        state, timestep = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, env.params)
        success = jnp.where(done, success, timestep.reward)
        return (state, done | timestep.done, success), None

    start = state, jnp.zeros(128, bool), jnp.zeros(128)
    (_, done, success), _ = jax.lax.scan(body, start, None, 20)
    assert done.all() and (success == 1).all()


@pytest.mark.parametrize("named", [0, 1])
def test_both_objects_end_the_episode_and_one_pays(env, named):
    inner = module.State(jnp.array([2, 3]), jnp.array([[2, 4], [2, 2]]), jnp.array([1, 3]))
    state = _reset(env, 1, 0.0)[0]
    state = jax.tree.map(lambda x: x[0], state)
    state = dataclasses.replace(state, inner=inner)
    action = jnp.int32(0 if named == 0 else 2)
    _, timestep = env.step(jax.random.key(0), state, action, env.params)
    assert bool(timestep.terminated)
    assert float(timestep.reward) == float(timestep.metrics["success"]) == (named == 0)


def test_captions_name_the_object_that_the_agent_is_beside():
    keys = jax.random.split(jax.random.key(2), 64)
    words = jnp.arange(64) % 4
    pictures = np.asarray(jax.vmap(module.captioned_picture, (0, 0, None))(keys, words, 9)).astype(
        int
    )
    for image, word in zip(pictures, np.asarray(words), strict=True):
        agent = np.argwhere((image == module.AGENT).all(-1))
        named = np.argwhere((image == module.COLORS[word]).all(-1))
        assert len(agent) == len(named) == 1
        assert np.abs(agent - named).sum() == 1
        colors = [(image == c).all(-1).sum() for c in module.COLORS]
        assert sorted(colors) == [0, 0, 1, 1]
