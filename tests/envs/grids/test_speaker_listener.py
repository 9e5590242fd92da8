"""Speaker and listener: the rules, and words as the only hint where to go."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.envs.check import EnvironmentCheckError, check_environment
from jaxrl.envs.check_structure import check_structure

ENV = envs.make("speaker_listener")
COPIES = 128


@pytest.fixture(scope="module")
def episodes():
    """Play `COPIES` episodes of the expert: states and time steps [T + 1, B], and actions [T, B];
    steps after an episode's end do not count."""

    @jax.jit
    @jax.vmap
    def run(key):
        first = ENV.reset(key, ENV.params)

        def body(state, key):
            action = ENV.expert(state, ENV.params)
            after = ENV.step(key, state, action, ENV.params)
            return after[0], (*after, action)

        _, (states, timesteps, actions) = jax.lax.scan(body, first[0], jax.random.split(key, 12))
        join = lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b])
        return (*jax.tree.map(join, first, (states, timesteps)), actions)

    out = run(jax.random.split(jax.random.key(0), COPIES))
    states, timesteps, actions = jax.device_get(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), out))
    return states.inner, timesteps, actions


@pytest.mark.slow
def test_it_keeps_the_rules():
    check_environment(ENV, steps=8)


@pytest.mark.slow
def test_the_expert_arrives_at_the_target_landmark(episodes):
    states, timesteps, _ = episodes
    end = timesteps.terminated.argmax(0)
    b = np.arange(COPIES)
    assert timesteps.terminated.any(0).all()
    np.testing.assert_array_equal(timesteps.reward[end, b], 1)
    np.testing.assert_array_equal(timesteps.metrics["success"][end, b], 1)
    there = states.landmarks[end, b, states.asked[end, b]]
    np.testing.assert_array_equal(states.place[end, b], there)
    for i in b:  # and at no landmark before
        before = states.place[: end[i], None, i] == states.landmarks[0, i]
        assert not before.all(-1).any() and not timesteps.reward[: end[i], i].any()


def test_only_words_tell_the_listener_the_target(episodes):
    states, timesteps, actions = episodes
    speaker, listener = (timesteps.observation[k] for k in ("speaker", "listener"))
    np.testing.assert_array_equal(speaker, np.eye(3)[states.asked])
    way = (states.landmarks - states.place[..., None, :]) / 5
    np.testing.assert_allclose(listener[..., :6], way.reshape(*way.shape[:2], 6), atol=1e-6)
    assert not listener[0, :, 6:].any()  # silence at first
    np.testing.assert_array_equal(listener[1:, :, 6:], np.eye(6)[actions["speaker"]])
    both = np.concatenate([speaker, listener], -1)
    np.testing.assert_array_equal(timesteps.privileged["state"], both)


def test_steps_out_of_the_room_are_illegal_and_lead_nowhere(episodes):
    states, timesteps, _ = episodes
    row, column = states.place[..., 0], states.place[..., 1]
    legal = timesteps.legal_actions["listener"]
    inside = np.stack([column < 4, row < 4, column > 0, row > 0, row >= 0], -1)
    np.testing.assert_array_equal(legal, inside)
    assert timesteps.legal_actions["speaker"].all()
    state, _ = ENV.reset(jax.random.key(0), ENV.params)
    corner = dataclasses.replace(state.inner, place=jnp.array([0, 1]))
    state = dataclasses.replace(state, inner=corner)
    action = {"speaker": jnp.int32(0), "listener": jnp.int32(3)}
    after, _ = ENV.step(jax.random.key(0), state, action, ENV.params)
    np.testing.assert_array_equal(after.inner.place, [0, 1])


def test_landmarks_block_no_path(episodes):
    states, _, _ = episodes
    landmarks = states.landmarks[0]
    assert not (landmarks % 2).any()
    apart = (landmarks[:, :, None] != landmarks[:, None]).any(-1)
    assert (apart | np.eye(3, dtype=bool)).all()
    assert not (states.place[0][:, None] == landmarks).all(-1).any()
    assert len(np.unique(states.asked[0])) == 3


@pytest.mark.parametrize(
    ("legal", "sentence"),
    [
        (jnp.ones(6, bool), "legal_actions have the structure"),
        ({"speaker": jnp.ones(6, bool), "listener": jnp.ones(4, bool)}, r"bool\[4\]; for Discrete"),
    ],
    ids=["structure", "shape"],
)
def test_legal_actions_are_those_of_each_agent(legal, sentence):
    def with_legal_actions(result):
        state, timestep = result
        return state, dataclasses.replace(timestep, legal_actions=legal)

    wrong = dataclasses.replace(
        ENV,
        reset=lambda key, params: with_legal_actions(ENV.reset(key, params)),
        step=lambda key, state, action, params: with_legal_actions(
            ENV.step(key, state, action, params)
        ),
    )
    with pytest.raises(EnvironmentCheckError, match=sentence):
        check_structure(wrong)
