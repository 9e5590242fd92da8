"""Pushing table: nothing leaves it, pushes obey mechanics, goals and the expert work."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.random import key as fast_key
from jaxrl.envs import check_environment, make
from jaxrl.envs.planar import push_table, shapes

COPIES = 64


@functools.cache
def _rollout(task: str, shape: str):
    """Compile observations [T, B, 11] and successes [T, B] of the expert or of random actions."""
    env = make("push", task=task, shape=shape)

    @jax.jit
    def roll(key, params, random):
        reset, step = (
            jax.vmap(f, a) for f, a in ((env.reset, (0, None)), (env.step, (0, 0, 0, None)))
        )
        state, _ = reset(jax.random.split(key, COPIES), params)

        def body(carry, key):
            state, noise = carry
            new = jax.random.uniform(key, (COPIES, 3), minval=-1.0, maxval=1.0)
            noise = jnp.where(new[:, 2:] > 0.6, 1.5 * new[:, :2], noise)
            expert = jax.vmap(env.expert, (0, None))(state, params)
            keys = jax.random.split(key, COPIES)
            state, timestep = step(keys, state, jnp.where(random, noise, expert), params)
            return (state, noise), (timestep.observation, timestep.metrics["success"])

        start = state, jnp.zeros((COPIES, 2))
        return jax.lax.scan(body, start, jax.random.split(key, 200))[1]

    return env, roll


def _between(observation, params):
    """Return the distance between a box and every post at each step."""
    cos, sin = observation[..., None, 6], observation[..., None, 7]
    away = params.posts[:, :2] - observation[..., None, 4:6]
    local = np.stack(
        [cos * away[..., 0] + sin * away[..., 1], cos * away[..., 1] - sin * away[..., 0]]
    )
    outside = np.maximum(np.abs(local) - params.parts[0, 2:, None, None, None], 0.0)
    return np.hypot(*outside) - params.posts[:, 2]


@pytest.mark.slow
def test_it_keeps_every_rule():
    check_environment(make("push"))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "shape"), [("push", "disc"), ("gap", "box")])
def test_the_expert_succeeds_and_nothing_leaves_the_table(task, shape):
    env, roll = _rollout(task, shape)
    observation, success = roll(fast_key(0), env.params, False)
    _, chance = roll(fast_key(0), env.params, True)
    assert (np.asarray(success) > 0).any(0).mean() > 0.8
    assert (np.asarray(chance) > 0).any(0).mean() < 0.3

    if task == "gap":
        assert _between(np.asarray(observation), env.params).min() > -0.005

    fast = dataclasses.replace(
        env.params, max_speed=100.0, restitution=0.9, table_friction=0.01, pusher_mass=50.0
    )
    observation, _ = roll(fast_key(1), fast, True)
    observation = np.asarray(observation)
    assert np.all(np.isfinite(observation))
    assert np.abs(observation[..., :2]).max() <= 0.5 - 0.03 + 1e-5
    place, turn = observation[..., 4:6], observation[..., 6:8]
    assert np.linalg.norm(observation[..., 8:10], axis=-1).max() > 1
    if shape == "disc":
        assert np.abs(place).max() <= 0.5 - 0.08 + 1e-5
        return
    outline = jax.jit(shapes.boxes)(env.params.parts, 1.0)
    corners = np.asarray(outline.offsets[:, None] + outline.halves[:, None] * shapes.CORNERS)
    x, y = corners.reshape(-1, 2).T
    cos, sin = turn[..., :1], turn[..., 1:]
    across, up = place[..., :1] + cos * x - sin * y, place[..., 1:] + sin * x + cos * y
    # The impulses come after the move, so the turns they cause are corrected a substep later.
    assert max(np.abs(across).max(), np.abs(up).max()) <= 0.5 + 1e-4


def test_a_central_push_moves_the_disc_with_the_pusher_and_it_slides_to_a_stop():
    env = make("push")
    params = env.params
    state, _ = env.reset(jax.random.key(0), params)
    touching = params.object_radius + params.pusher_radius
    inner = dataclasses.replace(
        state.inner,
        pusher=jnp.asarray([-0.3 - touching, 0.0, 0.0, 0.0]),
        object=jnp.asarray([-0.3, 0.0, 0.0, 0.0, 0.0, 0.0]),
        goal=jnp.asarray([0.4, 0.4]),
    )
    state = dataclasses.replace(state, inner=inner)

    observation = []
    for speed in [0.8] * 8 + [-1.0] * 8:
        action = jnp.asarray([speed, 0.0])
        state, timestep = env.step(jax.random.key(0), state, action, params)
        observation.append(timestep.observation)
        assert not timestep.terminated and not timestep.reward
    observation = np.asarray(observation)
    during = observation[2:8]
    np.testing.assert_allclose(during[:, 4] - during[:, 0], touching, atol=2e-3)
    np.testing.assert_allclose(observation[:, 5], 0.0, atol=1e-6)  # straight ahead
    # The servo's push against the friction with the table: steady speed where
    # servo (commanded - v) = friction m g.
    drag = params.table_friction * params.object_mass * params.gravity
    steady = 0.8 * params.max_speed - drag / params.servo
    np.testing.assert_allclose(observation[7, 8], steady, rtol=0.15)
    speed = observation[7, 8]
    slid = speed**2 / (2 * params.table_friction * params.gravity)
    np.testing.assert_allclose(observation[-1, 4] - observation[7, 4], slid, rtol=1e-3)
    assert observation[-1, 8] == 0


def test_relabeling_agrees_with_the_step():
    env = make("push")
    assert env.goals is not None
    params = dataclasses.replace(env.params, goal_radius=0.3)
    state, _ = env.reset(jax.random.key(0), params)
    ended = []
    for angle in np.linspace(0, 2 * np.pi, 8):
        inner = dataclasses.replace(
            state.inner,
            goal=state.inner.object[:2] + 0.2 * angle * jnp.asarray([np.cos(angle), np.sin(angle)]),
        )
        now = dataclasses.replace(state, inner=inner)
        _, timestep = env.step(jax.random.key(0), now, jnp.ones(2), params)
        achieved = env.goals.achieved(timestep.observation)
        reward, terminated = env.goals.outcome(achieved, timestep.goal, params)
        assert (timestep.reward, timestep.terminated) == (reward, terminated)
        assert terminated == (np.linalg.norm(achieved - timestep.goal) <= 0.3) == (reward == 1)
        ended.append(bool(terminated))
    assert 0 < sum(ended) < 8


def test_the_dense_reward_of_a_pose_counts_place_and_angle():
    env = make("push", task="pose", shape="t", reward="dense")
    assert env.goals is not None
    rng = np.random.default_rng(0)
    n = 100
    place = rng.uniform(-0.05, 0.05, (n, 2))
    places = place, place + rng.uniform(-0.06, 0.06, (n, 2))
    angle, turn = rng.uniform(-3, 3, n), rng.uniform(-0.6, 0.6, n)
    achieved, goal = (
        np.concatenate([p, np.stack([np.cos(a), np.sin(a)], -1)], -1).astype("f")
        for p, a in zip(places, (angle, angle + turn), strict=True)
    )
    reward, terminated = jax.jit(env.goals.outcome)(achieved, goal, env.params)
    away = np.linalg.norm(achieved[:, :2] - goal[:, :2], axis=-1)
    near = (away <= 0.05) & (np.abs(turn) <= 0.3)
    np.testing.assert_array_equal(terminated, near)
    np.testing.assert_allclose(reward, -away - 0.1 * (1 - np.cos(turn)), atol=1e-6)
    assert 0.1 < near.mean() < 0.9
    observation = np.arange(11.0)
    np.testing.assert_array_equal(env.goals.achieved(observation), observation[4:8])


def test_other_options_have_one_structure():
    key = jax.random.key(0)
    for task, shape in (("pose", "t"), ("reach", "disc"), ("obstacle", "box")):
        env = make("push", task=task, shape=shape, control="force", reward="dense")
        before = jax.eval_shape(env.reset, key, env.params)
        after = jax.eval_shape(env.step, key, before[0], jnp.zeros(2), env.params)
        assert jax.tree.structure(before) == jax.tree.structure(after)
        assert jax.tree.leaves(before) == jax.tree.leaves(after)  # shapes and dtypes


def test_wrong_options_are_rejected():
    for options, message in (
        ({"task": "throw"}, "'throw'; it must be 'push' or 'pose'"),
        ({"shape": "star"}, "'star'; it must be 'disc' or 'box' or 't'"),
        ({"control": "mind"}, "'mind'; it must be 'velocity' or 'force'"),
        ({"reward": "fame"}, "'fame'; it must be 'sparse' or 'dense'"),
        ({"task": "pose"}, "must be box or t"),
    ):
        with pytest.raises(UserError, match=message):
            make("push", **options)


@pytest.mark.parametrize("shape", ["disc", "box", "t"])
def test_the_pusher_starts_on_the_table_and_off_the_object(shape):
    env = make("push", shape=shape)
    starts = jax.jit(jax.vmap(lambda key: env.reset(key, env.params)[1].observation))
    observation = np.asarray(starts(jax.random.split(fast_key(0), 4096)))
    pusher, center = observation[:, :2], observation[:, 4:6]
    radius = float(push_table.shape_of(env.params).radius)
    assert np.abs(pusher).max() <= 0.5 - 0.03 + 1e-6
    assert np.linalg.norm(pusher - center, axis=-1).min() >= radius + 0.03 - 1e-6
