"""SVGG: the density of goals and where it moves them, goals in hindsight, and who sets goals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import svgg
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import TimeStep, Transition
from jaxrl.envs.goals import Given, given_goals
from tests.kit.stub import stub

ENV = envs.make("point_maze", **svgg.TINY["env_params"])
SETTINGS = {k: v for k, v in svgg.TINY.items() if k not in ("env", "env_params")}
RNG = np.random.default_rng(0)
HYPER = {
    "particles.alpha": 2.0,
    "particles.beta": 3.0,
    "particles.bandwidth": 0.6,
    "particles.outside": 0.25,
    "particles.sharpness": 0.7,
}


def numpy_log_density(goals, achieved, weights):
    """The density of goals, for a success predictor with linear log-odds."""
    square = lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1)
    density = lambda x: np.exp(-square(x, achieved) / (2 * 0.6**2)).sum(-1)
    level = np.exp(np.quantile(np.log(density(achieved)), 0.25))
    p = 1 / (1 + np.exp(-goals @ weights))
    difficulty = 0.7 * 12 * p * (1 - p) ** 2  # Beta(2, 3)
    return difficulty + np.log(density(goals) / (density(goals) + level))


def test_particles_move_along_the_stein_direction_of_difficulty_and_validity():
    goals, achieved = (RNG.normal(size=(n, 2)) for n in (5, 9))
    weights = np.array([0.7, -0.4])
    slopes = np.zeros_like(goals)
    for i, d in np.ndindex(goals.shape):
        change = np.zeros_like(goals)
        change[i, d] = 1e-5
        upper, lower = (
            numpy_log_density(goals + sign * change, achieved, weights)[i] for sign in (1, -1)
        )
        slopes[i, d] = (upper - lower) / 2e-5
    apart = goals[:, None] - goals[None]
    distance = np.sqrt((apart**2).sum(-1))
    width = np.median(distance[np.triu_indices(5, 1)]) / np.sqrt(2 * np.log(6))
    kernel = np.exp(-(distance**2) / (2 * width**2))
    expected = (kernel @ slopes + (kernel[..., None] * apart).sum(1) / width**2) / 5

    net = stub(
        success=lambda x: x @ jnp.float32(weights),
        particles=lambda: jnp.float32(goals),
        hyper=HYPER,
    )
    direction = svgg.direction_of_goals(net, jnp.float32(achieved))
    np.testing.assert_allclose(direction, expected, rtol=1e-3, atol=1e-4)

    def loss(particles):
        return svgg.particle_loss(stub(particles=lambda: particles), direction).sum()

    np.testing.assert_allclose(jax.grad(loss)(jnp.float32(goals)), -direction, rtol=1e-6)


def test_goals_far_from_all_that_was_achieved_are_not_valid():
    achieved = jnp.float32(RNG.normal(size=(40, 2)))
    goals = jnp.float32([[0, 0], [4, 0], [100, 0]])
    at = lambda x: svgg.log_validity(x, achieved, jnp.float32(0.5), jnp.float32(0.1))
    near, off, far = np.asarray(at(goals))
    assert near > -0.3 and off < -5 and np.isfinite(far) and far < off
    slope = jax.grad(lambda x: at(x).sum())(goals)
    assert np.all(np.isfinite(slope)) and slope[2, 0] < 0  # back to where something was achieved
    inside = np.asarray(at(achieved)) > np.log(0.5)
    np.testing.assert_allclose(inside.mean(), 0.9, atol=0.03)


def test_goals_in_hindsight_are_achieved_by_later_steps_of_the_episode():
    steps, count = 4, 300
    place = RNG.uniform(-2, 2, (steps + 1, count, 4)).astype(np.float32)
    goal = np.full((steps, count, 2), 9.0, np.float32)  # out of reach
    done = RNG.random((steps, count)) < 0.3
    no = np.zeros((steps, count), bool)
    reward = np.zeros((steps, count), np.float32)
    before = TimeStep(place[:-1], reward, no, no, no, goal=goal)
    after = TimeStep(place[1:], reward, no, done, no, goal=goal)
    action = RNG.normal(size=(steps, count, 2)).astype(np.float32)
    x = jax.tree.map(jnp.asarray, Transition(before, action, after, (), {}))
    first = svgg.in_hindsight(ENV, x, random.key(0), jnp.float32(1.0))
    seen = set()
    for i in range(count):
        last = np.argmax(done[:, i]) if done[:, i].any() else steps - 1
        told = np.asarray(first.timestep.goal[i])
        (later,) = np.flatnonzero((place[1:, i, :2] == told).all(-1))
        assert later <= last
        seen.add((int(later), int(last)))
        np.testing.assert_array_equal(first.next_timestep.goal[i], told)
        reached = np.linalg.norm(place[1, i, :2] - told) <= ENV.params.goal_radius
        assert reached >= (later == 0)
        assert first.reward[i] == reached and first.terminated[i] == reached
    assert seen == {(later, last) for last in range(steps) for later in range(last + 1)}
    same = svgg.in_hindsight(ENV, x, random.key(0), jnp.float32(0.0))
    np.testing.assert_array_equal(same.timestep.goal, goal[0])
    some = svgg.in_hindsight(ENV, x, random.key(0), jnp.float32(0.8))
    share = (np.asarray(some.timestep.goal) != goal[0]).any(-1).mean()
    np.testing.assert_allclose(share, 0.8, atol=0.08)


def test_success_is_judged_at_ends_by_the_goal_of_the_episode():
    logits = jnp.float32([2.0, -1.0])
    ended = np.array([True, False])
    goal = np.eye(2, dtype=np.float32)
    step = TimeStep(np.zeros((2, 4)), np.zeros(2), ended, ~ended, ended, goal=goal)
    x = Transition(step, np.zeros(2), step, (), {})
    out = svgg.success_loss(stub(success=lambda goal: goal @ logits), x)
    np.testing.assert_allclose(out.value, np.log1p(np.exp([-2.0, -1.0])), rtol=1e-5)


def test_episodes_have_the_goals_that_are_given():
    env, key = given_goals(ENV), random.key(3)
    _, plain = ENV.reset(key, ENV.params)
    goal = np.asarray(plain.observation[:2]) + np.float32([0.0, 0.5])
    params = Given(ENV.params, goal)
    state, timestep = env.reset(key, params)
    np.testing.assert_array_equal(timestep.goal, goal)
    np.testing.assert_array_equal(timestep.observation, plain.observation)
    step = jax.jit(env.step)
    for _ in range(40):
        state, timestep = step(key, state, jnp.float32([0.0, 1.0]), params)
        if timestep.terminated:
            break
    assert timestep.terminated and timestep.reward == 1
    assert np.linalg.norm(timestep.observation[:2] - goal) <= ENV.params.goal_radius
    assert env is given_goals(ENV)
    with pytest.raises(UserError, match="cannot be given"):
        given_goals(envs.make("pendulum"))


def test_tasks_hand_on_the_goals_that_the_policy_told():
    tasks = svgg.goals_of_the_policy(ENV, 3)
    state = tasks.init(random.key(0), None, {})
    assert state.shape == (3, 2)
    told = jnp.arange(12.0).reshape(2, 3, 2)
    x = Transition((), (), (), (), {"next_goal": told})
    state = tasks.update(state, None, x)
    ids = np.asarray(tasks.sample(state, random.key(1), 64))
    assert {tuple(x) for x in ids.tolist()} == {(6, 7), (8, 9), (10, 11)}
    np.testing.assert_array_equal(tasks.params(state, ids[0]).goal, ids[0])


def test_environments_without_goals_that_can_be_given_are_refused():
    with pytest.raises(UserError, match="cannot be given"):
        svgg.svgg(envs.make("pendulum"), SETTINGS)
    with pytest.raises(UserError, match=r"normalization\.observation is on"):
        svgg.svgg(ENV, SETTINGS | {"normalization.observation": True})
