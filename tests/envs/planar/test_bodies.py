"""Environments built on the articulated kit: their rules, experts and robustness."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random, spaces
from jaxrl.envs.check import check_environment
from jaxrl.envs.planar import locomotion, tasks

NAMES = ("cartpole_swingup", "cheetah", "double_pendulum", "hopper", "reacher", "walker")
COPIES, EXPERTS = 64, 16


@functools.cache
def _episodes(name: str) -> dict[str, Any]:
    """Play 1,000 steps of 64 environments with random actions, each with its own parameters within
    +- 30 %, and then of 16 that follow the expert, if there is one; they restart when an episode
    ends. `return` is that of the first episode."""
    env = envs.make(name)
    expert = env.expert or (lambda state, params: jnp.zeros(env.action_space.shape))
    clever = np.arange(COPIES + EXPERTS) >= COPIES

    def episode(key, params, clever):
        def step(carry, key):
            state, total, alive = carry
            act_key, step_key, reset_key = jax.random.split(key, 3)
            action = spaces.sample(env.action_space, act_key)
            action = jnp.where(clever, expert(state, params), action)
            state, timestep = env.step(step_key, state, action, params)
            total = total + jnp.where(alive, timestep.reward, 0.0)
            alive = alive & ~timestep.done
            fresh, _ = env.reset(reset_key, params)
            fine = jnp.isfinite(timestep.observation).all() & jnp.isfinite(timestep.reward)
            state = jax.tree.map(lambda x, y: jnp.where(timestep.done, x, y), fresh, state)
            return (state, total, alive), (fine, jnp.abs(timestep.observation).max())

        state, _ = env.reset(key, params)
        (_, total, _), (fine, largest) = jax.lax.scan(
            step, (state, jnp.float32(0), jnp.bool_(1)), jax.random.split(key, 1000)
        )
        return {
            "return": total,
            "fine": fine.all(),
            "largest": largest.max(),
        }

    rng = np.random.default_rng(0)

    def vary(x):
        shape = (len(clever), *np.shape(x))
        if np.asarray(x).dtype.kind != "f":
            return np.full(shape, x, np.int32)
        factor = 1 + 0.3 * rng.uniform(-1, 1, shape)
        factor[clever] = 1.0
        return (x * factor).astype(np.float32)

    environments = jax.tree.map(vary, env.params)
    keys = jax.random.split(random.key(1), len(clever))
    result = jax.tree.map(np.asarray, jax.jit(jax.vmap(episode))(keys, environments, clever))
    return {k: (v[:COPIES], v[COPIES:]) for k, v in result.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole_swingup", "double_pendulum", "hopper", "reacher"])
def test_the_environment_keeps_the_rules(name):
    check_environment(envs.make(name), steps=16)


@pytest.mark.parametrize("name", ["cheetah", "walker"])
def test_the_hoppers_siblings_have_one_structure(name):
    """Compare structures only: their programs are the hopper's, for another body."""
    env = envs.make(name)
    state, first = jax.eval_shape(env.reset, jax.random.key(0), env.params)
    action = jnp.zeros(env.action_space.shape)
    after = jax.eval_shape(env.step, jax.random.key(0), state, action, env.params)
    assert jax.tree.structure((state, first)) == jax.tree.structure(after)
    assert jax.tree.leaves((state, first)) == jax.tree.leaves(after)  # shapes and dtypes
    assert first.observation.shape == env.observation_space.shape
    still = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state)
    frame = env.render(still, env.params)
    assert frame.shape == (260, 400, 3) and frame.dtype == np.uint8


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nothing_blows_up_under_random_actions_and_parameters(name):
    outcome = _episodes(name)
    assert outcome["fine"][0].all() and outcome["fine"][1].all()
    assert max(outcome["largest"][0].max(), outcome["largest"][1].max()) < 1000


@pytest.mark.parametrize(
    ("name", "typical", "chance"),
    [
        ("cartpole_swingup", 750.0, 100.0),
        ("double_pendulum", 9300.0, 200.0),
        ("reacher", -6.0, -20.0),
        ("cheetah", 2500.0, 0.0),
    ],
)
def test_the_expert_is_far_better_than_random_actions(name, typical, chance):
    random_return, expert_return = _episodes(name)["return"]
    assert np.median(expert_return) > typical
    assert random_return.mean() < chance


# From MuJoCo's compiled models of the same bodies: masses, and moments of inertia about the centers
# of mass across the plane.
MUJOCO = {
    "cheetah": (
        [6.2502, 1.5435, 1.5874, 1.0954, 1.4381, 1.2008, 0.8845],
        [0.89712, 0.01684, 0.01827, 0.00635, 0.01374, 0.00822, 0.00353],
    ),
    "double_pendulum": ([10.472, 4.1987, 4.1987], [0.12671, 0.15497, 0.15497]),
    "hopper": ([3.6652, 4.0579, 2.7814, 5.3156], [0.06925, 0.0933, 0.0723, 0.10352]),
    "reacher": ([0.0356, 0.03979], [0.00004, 0.00005]),
    "walker": (
        [3.6652, 4.0579, 2.7814, 3.1667, 4.0579, 2.7814, 3.1667],
        [0.06925, 0.0933, 0.0723, 0.024, 0.0933, 0.0723, 0.024],
    ),
}


@pytest.mark.parametrize("name", list(MUJOCO))
def test_links_have_the_masses_and_moments_of_mujoco(name):
    params = envs.make(name).params
    np.testing.assert_allclose(params.mass, MUJOCO[name][0], atol=6e-5)
    np.testing.assert_allclose(params.inertia, MUJOCO[name][1], atol=6e-6)


# --------------------------------------------------------------------------- tasks


@functools.cache
def _stepping(name: str, **settings: Any):
    env = envs.make(name, **settings)
    return env, jax.jit(env.step), jax.jit(env.reset)(jax.random.key(0), env.params)[0]


def _place(state: Any, **fields: Any) -> Any:
    fields = {k: jnp.asarray(v, jnp.float32) for k, v in fields.items()}
    return dataclasses.replace(state, inner=dataclasses.replace(state.inner, **fields))


@pytest.mark.slow
def test_the_hopper_is_rewarded_and_terminated_as_in_gymnasium():
    env, step, state = _stepping("hopper")
    action = jnp.array([0.5, -0.25, 2.0])  # the last is clipped
    start = np.array([0.3, 2.0, 0.1, -0.2, -0.3, 0.1])
    after, timestep = step(
        jax.random.key(1), _place(state, q=start, velocity=np.full(6, 20.0)), action, env.params
    )
    moved = (after.inner.q[0] - start[0]) / 0.008
    control = 1e-3 * (0.5**2 + 0.25**2 + 1.0)
    np.testing.assert_allclose(timestep.reward, moved + 0.0 - control, rtol=1e-4)  # tilted by now
    assert timestep.terminated
    np.testing.assert_allclose(timestep.observation[:5], after.inner.q[1:], rtol=1e-6)
    expected = np.clip(after.inner.velocity, -10, 10)
    np.testing.assert_allclose(timestep.observation[5:], expected, rtol=1e-6)
    total = sum(float(x) for x in timestep.reward_components.values())
    np.testing.assert_allclose(timestep.reward, total, rtol=1e-6)
    for q, alive in (
        ([0.0, 1.25, 0.0, 0.0, 0.0, 0.0], True),
        ([0.0, 0.69, 0.0, 0.0, 0.0, 0.0], False),
        ([0.0, 1.25, 0.21, 0.0, 0.0, 0.0], False),
        ([0.0, 1.25, -0.21, 0.0, 0.0, 0.0], False),
    ):
        begun = _place(state, q=q, velocity=np.zeros(6))
        _, timestep = step(jax.random.key(1), begun, jnp.zeros(3), env.params)
        assert bool(timestep.terminated) != alive, q
        np.testing.assert_allclose(timestep.reward_components["healthy"], float(alive))


def test_the_foot_is_on_the_ground_for_the_reported_fraction_of_the_episode():
    env, step, state = _stepping("hopper")
    state = _place(state, q=[0.0, 1.25, 0.0, 0.0, 0.0, 0.0], velocity=np.zeros(6))
    shares = []
    for _ in range(30):  # falls 4 cm: 0.09 s, 11 steps
        state, timestep = step(jax.random.key(1), state, jnp.zeros(3), env.params)
        shares.append(float(timestep.metrics["contact_foot"]))
    landed = next(i for i, share in enumerate(shares) if share > 0)
    assert 10 <= landed <= 12
    np.testing.assert_allclose(shares[-1], (30 - landed) / 30, rtol=1e-5)
    np.testing.assert_allclose(timestep.metrics["flight"], landed / 30, rtol=1e-5)
    assert "alternation" not in timestep.metrics  # the hopper has one foot
    distance, seconds = timestep.metrics["distance"], 30 * 0.008
    np.testing.assert_allclose(timestep.metrics["speed"], distance / seconds, rtol=1e-5)


@pytest.mark.parametrize(
    ("left", "right", "landings", "alternations"),
    [
        ("1100110011", "0011001100", 5, 4),  # a walk
        ("1111111111", "1111111111", 2, 0),  # standing: both landed at once
        ("1010101010", "0000000000", 5, 0),  # on one leg
        ("0100010001", "0001000100", 5, 4),  # a run
        ("0110011001", "0110011001", 6, 0),  # jumps
        ("0111111111", "0010101000", 4, 1),  # one foot stamps
    ],
)
def test_landings_alternate_if_the_feet_take_turns(left, right, landings, alternations):
    rows = np.array([list(left), list(right)], np.float32).T
    zero = jnp.zeros(())
    gait = locomotion.Gait(*[jnp.zeros(2)] * 3, zero, zero, zero)
    for row in rows:
        gait = locomotion._update_gait(gait, jnp.asarray(row))
    assert (float(gait.landings), float(gait.alternations)) == (landings, alternations)
    np.testing.assert_array_equal(gait.touched, rows.sum(0))
    assert float(gait.flown) == (rows.sum(1) == 0).sum()


def test_during_a_delay_the_previous_action_acts_for_part_of_the_step():
    env, step, state = _stepping("hopper")
    params = dataclasses.replace(env.params, delay=0.25)
    actions = jnp.array([[1.0, -1.0, 0.5], [0.2, 0.3, -0.4], [0.0, 0.0, 0.0]])
    late = prompt = _place(state, q=[0.0, 2.0, 0.0, 0.0, 0.0, 0.0], velocity=np.zeros(6))
    before = jnp.zeros(3)
    for action in actions:
        late, timestep = step(jax.random.key(1), late, action, params)
        prompt, _ = step(jax.random.key(1), prompt, 0.75 * action + 0.25 * before, env.params)
        control = timestep.reward_components["control"]  # of the commanded action
        np.testing.assert_allclose(control, -1e-3 * (action**2).sum(), rtol=1e-5)
        before = action
    np.testing.assert_allclose(late.inner.q, prompt.inner.q, atol=1e-6)
    assert np.abs(np.asarray(late.inner.q)[3:]).max() > 0.01


@pytest.mark.parametrize("reward", ["dense", "sparse"])
def test_the_reachers_reward_is_that_of_its_goal_less_the_control_cost(reward):
    env, step, state = _stepping("reacher", reward=reward)
    sparse = reward == "sparse"
    for goal in ([0.05, 0.1], [0.205, 0.01]):
        begun = _place(state, q=[0.0, 0.1], velocity=[0.0, 0.0], goal=goal)
        action = jnp.array([0.0, 0.1])
        _, timestep = step(jax.random.key(1), begun, action, env.params)
        assert env.goals is not None
        tip = env.goals.achieved(timestep.observation)
        away = float(np.hypot(*(np.asarray(tip) - goal)))
        expected = float(away <= 0.02) - 1.0 if sparse else -away - 0.01
        np.testing.assert_allclose(timestep.reward, expected, rtol=1e-5)
        part, _ = env.goals.outcome(tip, timestep.goal, env.params)
        np.testing.assert_allclose(part - (0.0 if sparse else 0.01), expected, rtol=1e-5)
        np.testing.assert_allclose(timestep.metrics["success"], float(away <= 0.02))


def test_the_double_pendulum_is_rewarded_as_in_gymnasium_and_swing_up_never_ends():
    env, step, state = _stepping("double_pendulum", swing_up=True)
    assert abs(float(state.inner.q[1])) > 3.0
    for q in ([0.3, 2.0, 1.0], [-0.2, 0.1, 0.2]):
        begun = _place(state, q=q, velocity=[0.5, -1.0, 2.0])
        after, timestep = step(jax.random.key(1), begun, jnp.array([0.3]), env.params)
        (x, first, second), (_, w1, w2) = (
            np.asarray(after.inner.q),
            np.asarray(after.inner.velocity),
        )
        x = x + 0.6 * (np.sin(first) + np.sin(first + second))
        y = 0.6 * (np.cos(first) + np.cos(first + second))
        expected = 10.0 * (y > 1) - 0.01 * x**2 - (y - 2) ** 2 - 1e-3 * w1**2 - 5e-3 * w2**2
        np.testing.assert_allclose(timestep.reward, expected, rtol=1e-4)
        assert not timestep.terminated and (y > 1) == (q[1] < 1)


def test_the_swing_up_is_rewarded_as_in_dm_control():
    env, step, state = _stepping("cartpole_swingup")
    for q in ([0.7, 2.0], [-0.1, 0.05]):
        begun = _place(state, q=q, velocity=[0.1, -1.5])
        after, timestep = step(jax.random.key(1), begun, jnp.array([0.6]), env.params)
        (x, angle), (_, turn) = np.asarray(after.inner.q), np.asarray(after.inner.velocity)
        upright, small = (1 + np.cos(angle)) / 2, (4 + 1 - 0.6**2) / 5
        centered, slow = (1 + 0.1 ** (x / 2) ** 2) / 2, (1 + 0.1 ** (turn / 5) ** 2) / 2
        np.testing.assert_allclose(timestep.reward, upright * small * centered * slow, rtol=1e-4)
        success = abs(x) <= 0.25 and np.cos(angle) >= 0.995
        np.testing.assert_array_equal(timestep.metrics["success"], success)


@functools.cache
def _starts(name: str) -> Any:
    env = envs.make(name)
    states, _ = jax.jit(jax.vmap(env.reset, (0, None)))(
        jax.random.split(random.key(2), 4000), env.params
    )
    return jax.tree.map(np.asarray, states.inner)


def test_episodes_start_with_the_published_noise():
    start = _starts("cheetah")
    np.testing.assert_allclose(np.abs(start.q).max(0), 0.1, rtol=5e-3)
    np.testing.assert_allclose(start.q.std(0), 0.1 / np.sqrt(3), rtol=0.05)
    np.testing.assert_allclose(start.velocity.std(0), 0.1, rtol=0.05)
    assert 0.3 < np.abs(start.velocity).max() < 0.6  # normal
    walker = _starts("walker")
    np.testing.assert_allclose(np.abs(walker.velocity).max(0), 0.005, rtol=5e-3)
    assert np.all(np.abs(walker.q[:, 1] - 1.25) <= 0.005)
    away = np.hypot(*_starts("reacher").goal.T)
    quantiles = np.quantile(away, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(quantiles, 0.2 * np.sqrt([0.25, 0.5, 0.75, 1.0]), rtol=0.04)


def test_no_start_is_infinite():
    """Check the least and the greatest number that a start can be made of."""
    assert float(tasks.symmetric(random.key(0), 1000).min()) > -1.0
    ends = np.nextafter(np.float32([-1, 1]), np.float32(0))
    np.testing.assert_allclose(tasks.normal(ends), [-5.3, 5.3], atol=0.3)
