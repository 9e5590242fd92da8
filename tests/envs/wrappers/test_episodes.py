"""Endless lives, random ends, random environments, goals, and the actions of experts."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Environment, Transition
from jaxrl.envs import make, timesteps
from jaxrl.envs.goals import relabel
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers import (
    continuing,
    distractors,
    domain_randomization,
    early_truncation,
    expert_channel,
    flat_observations,
    frame_stack,
    goal_conditioned,
    time_limit,
)
from jaxrl.evaluation.evaluate import evaluate
from tests.envs.wrappers import environments
from tests.envs.wrappers.environments import play, timesteps_of


def test_a_continuing_life_restarts_without_a_signal():
    env = continuing(time_limit(environments.walk(legal=True, observe="vector"), 4))
    assert env.max_steps is None
    # Terminated at the third step (6 > 5), then truncated by the clock after four.
    got = timesteps_of(env, np.asarray([2, 2, 2, 1, 0, 0, 0, 2], np.int32))
    np.testing.assert_array_equal(got.reward, [0, 2, 4, 6, 1, 1, 1, 1, 2])
    np.testing.assert_array_equal(got.observation[:, 0], [0, 2, 4, 0, 1, 1, 1, 0, 2])
    np.testing.assert_array_equal(got.cost, [0, 2, 2, 2, 1, 0, 0, 0, 2])
    np.testing.assert_array_equal(got.privileged["steps"], [0, 1, 2, 0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(got.legal_actions[:, 2], [1, 0, 1, 1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(got.metrics["success"], [0, 0, 1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(got.first, [1] + 8 * [0])
    assert not got.done.any()


def test_a_continuing_life_shows_who_lives_in_the_new_episode():
    both, one = jnp.ones(2, bool), jnp.asarray([True, False])

    def reset(key, params):
        return jnp.int32(0), timesteps.first(jnp.zeros(1), alive=both)

    def step(key, state, action, params):
        after = state + 1
        seen = jnp.full(1, after, jnp.float32)
        return after, timesteps.following(seen, 1.0, after == 2, alive=one & (after < 2))

    env = Environment("duo", reset, step, (), Box(0.0, 9.0, (1,)), Discrete(2))
    got = timesteps_of(continuing(env), np.zeros(4, np.int32))
    np.testing.assert_array_equal(got.observation[:, 0], [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(got.alive, [both, one, both, one, both])


def test_early_truncation_has_its_probability_and_leaves_terminations_alone():
    env = early_truncation(environments.walk(observe="vector"), 0.2)
    still = jnp.zeros(8000, jnp.int32)
    got = timesteps_of(env, still)
    assert abs(got.truncated[1:].mean() - 0.2) < 0.02 and not got.truncated[0]
    assert not got.terminated.any()
    assert not timesteps_of(env, still, truncation_probability=0.0).done.any()
    over = dataclasses.replace(env.params, inner=environments.Params(end=0.0))
    timestep = play(env, still, dataclasses.replace(over, truncation_probability=1.0))[1]
    assert timestep.terminated[1:].all() and not timestep.truncated.any()


def _draw(key, params):
    slope = params.slope * jax.random.uniform(key, minval=1.0, maxval=3.0)
    return dataclasses.replace(params, slope=slope, end=4.0)


def test_domain_randomization_keeps_its_draw_for_an_episode():
    env = domain_randomization(environments.walk(observe="vector"), _draw)
    actions = jnp.ones(4, jnp.int32)
    run = jax.jit(jax.vmap(lambda seed, p: play(env, actions, p, seed), in_axes=(0, None)))
    for base in (1.0, 10.0):
        states, got = run(jnp.arange(1000), environments.Params(slope=base))
        slopes = np.asarray(states.params.slope) / base
        np.testing.assert_array_equal(slopes, slopes[:, :1].repeat(5, 1))
        assert 1 <= slopes.min() < 1.05 and 2.95 < slopes.max() <= 3
        assert abs(slopes.mean() - 2) < 0.06
        np.testing.assert_allclose(got.reward, base * slopes * np.arange(5), rtol=1e-6)
        np.testing.assert_array_equal(got.terminated.all(0), [0, 0, 0, 0, 1])
    state = jax.tree.map(lambda x: x[0, 3], states)  # environment 3 of the 4 that were drawn
    assert int(env.expert(state, env.params)) == 0
    assert int(environments.walk(observe="vector").expert(state.inner, env.params)) == 1


# ------------------------------------------------------------------------------------------- goals

GOALS = goal_conditioned(
    environments.walk(observe="vector"),
    environments.achieved_goal,
    environments.draw_goal,
    environments.outcome,
)
ACTIONS = np.asarray([[1, 1, 0, 1, 1, 2], [2, 1, 1, 0, 0, 2], [0, 0, 2, 2, 1, 0]], np.int32)


@functools.cache
def _transitions(wrap=lambda env: env):
    """Return transitions [12, T] of four times three walks, each with its own goal."""
    env = wrap(GOALS)
    actions = jnp.asarray(np.tile(ACTIONS, (4, 1)))
    seeds = jnp.arange(len(actions))
    run = jax.jit(jax.vmap(lambda a, seed: play(env, a, None, seed)[1]))
    timesteps = run(actions, seeds)
    before, after = (
        jax.tree.map(lambda x, s=s: x[:, s], timesteps) for s in (slice(6), slice(1, 7))
    )
    return actions, Transition(before, actions, after, (), {})


def test_the_goal_of_an_episode_is_shown_and_rewarded():
    _, got = _transitions()
    goals = np.asarray(got.timestep.goal)
    np.testing.assert_array_equal(goals, goals[:, :1].repeat(6, 1))
    assert set(goals.ravel()) == {1.0, 2.0, 3.0, 4.0}
    there = got.next_observation[..., 0] == goals[..., 0]
    np.testing.assert_array_equal(got.reward, np.where(there, 0.0, -1.0))
    np.testing.assert_array_equal(got.terminated, there | (got.next_observation[..., 0] >= 5))
    assert got.timestep.true_reward is None and there.any()


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, 0))
def _relabeled_and_played(experience, actions, goal):
    """Return the experience relabeled with `goal`, and the same actions in an environment with
    it."""
    relabeled = jax.vmap(jax.vmap(lambda t: relabel(GOALS, t, goal)))(experience)
    return relabeled, jax.vmap(lambda a: play(environments.with_fixed_goal(goal), a)[1])(actions)


@pytest.mark.slow
def test_relabeled_experience_is_that_of_an_environment_with_the_goal():
    actions, experience = _transitions()
    goals = jnp.arange(1.0, 5.0)[:, None]
    got, expected = _relabeled_and_played(experience, actions, goals)
    np.testing.assert_array_equal(got.reward, expected.reward[..., 1:])
    np.testing.assert_array_equal(got.timestep.reward, expected.reward[..., :-1])
    np.testing.assert_array_equal(got.terminated, expected.terminated[..., 1:])
    np.testing.assert_array_equal(got.timestep.goal, expected.goal[..., :-1, :])
    np.testing.assert_array_equal(got.next_timestep.goal, expected.goal[..., 1:, :])
    np.testing.assert_array_equal(got.observation, expected.observation[..., :-1, :])
    # If only the old goal ended the episode, it is truncated there.
    np.testing.assert_array_equal(got.truncated, experience.done & ~got.terminated)
    assert got.truncated.any() and got.terminated.any()

    # Rewards that do not depend on the goal, such as the price of an action, stay for any goal.
    price = 0.25 * np.asarray(actions)
    after = dataclasses.replace(experience.next_timestep, reward=experience.reward - price)
    priced = dataclasses.replace(experience, next_timestep=after)
    got = _relabeled_and_played(priced, actions, goals)[0]
    np.testing.assert_array_equal(got.reward, expected.reward[..., 1:] - price)


@pytest.mark.parametrize("goal", [np.zeros((12, 1), np.float32), np.zeros(2, np.float32)])
def test_relabeling_takes_one_transition_and_its_kind_of_goal(goal):
    _, batch = _transitions()
    one = jax.tree.map(lambda x: x[0, 0], batch)
    with pytest.raises(UserError, match="both must be of one transition"):
        relabel(GOALS, batch if len(goal) == 12 else one, goal)


def test_goals_survive_wrappers_that_change_observations():
    for wrap in (lambda env: frame_stack(env, 3), flat_observations):
        env = wrap(GOALS)
        _, experience = _transitions(wrap)
        reached = jax.vmap(jax.vmap(env.goals.achieved))(experience.next_observation)
        np.testing.assert_array_equal(reached, _transitions()[1].next_observation[..., :1])


@pytest.mark.parametrize(
    "wrap", [lambda env: frame_stack(env, 3), flat_observations, lambda env: distractors(env, 2)]
)
def test_goals_of_many_observations_are_those_of_each(wrap):
    env = wrap(GOALS)
    _, experience = _transitions(wrap)
    seen = experience.next_observation
    each = jax.vmap(jax.vmap(env.goals.achieved))(seen)
    np.testing.assert_array_equal(env.goals.achieved(seen), each)


@pytest.mark.parametrize("wrap", [continuing, lambda env: domain_randomization(env, _same_params)])
def test_a_game_that_goes_on_or_changes_is_not_the_game_of_its_rules(wrap):
    game = make("rock_paper_scissors")
    assert game.rules is not None and wrap(game).rules is None


def _same_params(key, params):
    return params


# ----------------------------------------------------------------------------------------- experts


def test_the_channel_holds_the_experts_current_action():
    env = expert_channel(environments.walk(observe="vector"))
    got = timesteps_of(env, np.asarray([2, 2, 0], np.int32))
    np.testing.assert_array_equal(got.privileged["expert_action"], [1, 1, 0, 0])
    np.testing.assert_array_equal(got.privileged["steps"], [0, 1, 2, 3])


def test_the_expert_is_a_policy():
    env = expert_channel(time_limit(environments.walk(observe="vector"), 6))
    got = evaluate(env, expert_policy(env), jax.random.key(0), 3)
    # 1, 2, 3 and 4, and then it stays at 4.
    np.testing.assert_array_equal(got.returns, 3 * [1 + 2 + 3 + 4 + 4 + 4])
    assert got.finished.all()
