"""Clips of pushing: starts, similar states, masked steps and rewards are what the page says."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.trees import strong
from jaxrl.envs import check_environment, make
from jaxrl.envs.planar import push_pictures
from jaxrl.envs.planar import push_skills as module
from jaxrl.envs.planar.push import push


@pytest.fixture(scope="module")
def env():
    return make("push_skills")


def _reset(env, number, **params):
    given = strong(dataclasses.replace(env.params, **params))
    keys = jax.random.split(jax.random.key(0), number)
    return jax.jit(jax.vmap(env.reset, (0, None)))(keys, given)


def _similar(a, b, params):
    places = (a[:2] - b[:2], a[4:6] - b[4:6], (a[:2] - a[4:6]) - (b[:2] - b[4:6]))
    speeds = (a[2:4] - b[2:4], a[6:8] - b[6:8])
    total = sum(x @ x for x in places) / params.place_scale**2
    return np.exp(-total - sum(x @ x for x in speeds) / params.velocity_scale**2)


def test_it_keeps_the_rules_of_environments(env):
    check_environment(env)


def test_each_clip_pushes_the_disc_to_its_aim(env):
    p = env.params
    last = p.clips[np.arange(4), p.lengths - 1]
    np.testing.assert_allclose(last[:, 4:6], module.AIMS, atol=0.03)
    assert (p.clips[:, 0, 4:6] ** 2).sum() < 0.01  # from the middle


def test_links_are_the_most_similar_states_of_other_clips(env):
    p = env.params
    for i, j, state in ((0, 1, 3), (2, 0, 10), (3, 2, 20)):
        similar = [_similar(p.clips[i, state], x, p) for x in p.clips[j, : p.lengths[j] - 1]]
        assert p.links[i, j, state] == np.argmax(similar)


def test_far_starts_mask_more_steps():
    similar = jnp.asarray([1.0, 0.6, 0.5, 0.2, 0.05, 1e-3 * 0.9, 0.0])
    assert module.masked_steps(similar).tolist() == [0, 0, 1, 1, 2, 4, 10]


def test_a_plain_start_is_a_state_of_the_clip_that_is_asked_for(env):
    p = env.params
    state, timestep = _reset(env, 4, start=2 * module.LENGTH + 9, noisy=0.0, switched=0.0)
    assert (state.clip == 2).all() and (state.frame == 9).all() and (state.masked == 0).all()
    np.testing.assert_allclose(timestep.observation[0, 4:6], p.clips[2, 9, 4:6], atol=1e-6)
    assert timestep.goal[0].tolist() == [0, 0, 1, 0]


def test_a_switched_start_is_a_linked_state_of_another_skill(env):
    p = env.params
    state, _ = _reset(env, 32, start=module.LENGTH + 12, noisy=0.0, switched=1.0)
    places = np.asarray(state.inner.inner.object[:, :2])
    linked = [p.clips[j, p.links[1, j, 12], 4:6] for j in (0, 2, 3)]
    distance = np.abs(places[:, None] - np.stack(linked)).sum(-1)
    assert (distance.min(1) < 1e-6).all()
    assert len(set(distance.argmin(1).tolist())) == 3  # all three others
    assert (state.frame == 12).all() and (state.masked > 0).any()


def test_a_noisy_start_follows_the_most_similar_state_of_its_clip(env):
    p = env.params
    state, _ = _reset(env, 32, start=5, noisy=1.0, switched=0.0)
    inner = state.inner.inner
    begun = np.concatenate([inner.pusher, inner.object], 1)
    for x, frame in zip(begun, np.asarray(state.frame), strict=True):
        similar = [_similar(x, y, p) for y in p.clips[0, : p.lengths[0] - 1]]
        assert similar[frame] == pytest.approx(max(similar), rel=1e-5)
    assert len(set(np.asarray(state.frame).tolist())) > 1


def test_steps_are_those_of_push_and_paid_by_similarity(env):
    p = env.params
    state, _ = _reset(env, 1, start=8, noisy=0.0, switched=0.0)
    one = jax.tree.map(lambda x: x[0], state)
    action = jnp.asarray([0.3, 0.8])
    after, timestep = jax.jit(env.step)(jax.random.key(1), one, action, p)
    plain, _ = jax.jit(push().step)(jax.random.key(1), one.inner, action, p.inner)
    now = np.concatenate([plain.inner.pusher, plain.inner.object])
    np.testing.assert_allclose(after.inner.inner.object, plain.inner.object, atol=1e-6)
    shown = p.clips[0, 9]
    clear = p.inner.object_radius + p.inner.pusher_radius + module.TOUCH
    touch = [np.linalg.norm(x[:2] - x[4:6]) < clear for x in (now, shown)]
    expected = _similar(now, shown, p) * np.exp(-1.0 * (touch[0] != touch[1]))
    assert float(timestep.reward) == pytest.approx(expected, rel=1e-4)
    assert int(after.frame) == 9


def test_masked_steps_wait_for_the_clip_and_are_not_paid(env):
    p = env.params
    state, _ = _reset(env, 1, start=8, noisy=0.0, switched=0.0)
    one = dataclasses.replace(jax.tree.map(lambda x: x[0], state), masked=jnp.int32(2))
    step = jax.jit(env.step)
    seen = []
    for _ in range(3):
        one, timestep = step(jax.random.key(1), one, jnp.zeros(2), p)
        masked = bool(timestep.privileged["masked"])
        seen.append((masked, float(timestep.reward) > 0, int(one.frame)))
    assert seen == [(True, False, 8), (True, False, 8), (False, True, 9)]
    assert float(one.compared) == 1


def test_an_episode_ends_with_its_clip(env):
    p = env.params
    start = int(p.lengths[3]) - 3
    state, _ = _reset(env, 1, start=3 * module.LENGTH + start, noisy=0.0, switched=0.0)
    one = jax.tree.map(lambda x: x[0], state)
    step, ends = jax.jit(env.step), []
    for _ in range(2):
        one, timestep = step(jax.random.key(1), one, jnp.zeros(2), p)
        ends.append((bool(timestep.truncated), bool(timestep.terminated)))
    assert ends == [(False, False), (True, False)]
    assert float(timestep.metrics["success"]) == 1  # the clip's last states are at the aim


def test_the_picture_shows_where_the_clip_leaves_the_disc(env):
    state, _ = env.reset(jax.random.key(0), strong(dataclasses.replace(env.params, start=0)))
    rows, columns = np.nonzero((env.render(state, env.params) == push_pictures.PALE).all(-1))
    size = push_pictures.PIXELS + 24
    seen = np.array([columns.mean() - size / 2, size / 2 - rows.mean()]) / push_pictures.PIXELS
    np.testing.assert_allclose(seen, module.AIMS[0], atol=0.03)
