"""Delays, sticky actions, repeats and finite actions: what the environment receives, step by
step."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import make
from jaxrl.envs.wrappers import (
    action_delay,
    action_repeat,
    discretized_actions,
    flat_actions,
    observation_delay,
    sticky_actions,
    time_limit,
)
from tests.envs.wrappers import environments
from tests.envs.wrappers.environments import timesteps_of

WALK = environments.walk(observe="vector")  # fewer leaves compile faster
ACTIONS = np.random.default_rng(0).integers(0, 3, 12).astype(np.int32)


def test_each_delay_shifts_the_actions_by_its_number_of_steps():
    env = action_delay(WALK, 3, 1)
    assert env.params.action_delay == 1
    delays = jnp.asarray([0, 1, 2, 3, -5, 9])
    params = dataclasses.replace(env.params, action_delay=delays)
    axes = dataclasses.replace(jax.tree.map(lambda x: None, env.params), action_delay=0, inner=None)
    run = jax.jit(jax.vmap(lambda p: environments.play(env, ACTIONS, p)[1].cost, in_axes=(axes,)))
    played = np.asarray(run(params))[:, 1:]  # the cost is the action that arrived
    for row, delay in zip(played, [0, 1, 2, 3, 0, 3], strict=True):
        np.testing.assert_array_equal(
            row, np.concatenate([np.zeros(delay), ACTIONS])[: len(ACTIONS)]
        )


def test_a_delay_of_vectors_begins_with_the_action_nearest_to_zero():
    arm = environments.arm()
    lifted = dataclasses.replace(arm, action_space=dataclasses.replace(arm.action_space, low=0.5))
    actions = np.random.default_rng(1).uniform(0.5, 1, (5, 2)).astype(np.float32)
    played = timesteps_of(action_delay(lifted), actions).observation[1:]
    np.testing.assert_array_equal(played, np.concatenate([[[0.5, 0.5]], actions[:-1]]))


@pytest.mark.parametrize("delay", [0, 2])
def test_observations_arrive_late_and_nothing_else_does(delay):
    env = observation_delay(WALK, 2)
    late = timesteps_of(env, ACTIONS, observation_delay=delay)
    true = timesteps_of(WALK, ACTIONS)
    index = np.maximum(np.arange(len(ACTIONS) + 1) - delay, 0)
    jax.tree.map(
        lambda seen, x: np.testing.assert_array_equal(seen, x[index]),
        late.observation,
        true.observation,
    )
    for field in ("reward", "terminated", "truncated", "first", "cost", "privileged"):
        jax.tree.map(np.testing.assert_array_equal, getattr(late, field), getattr(true, field))


def test_sticky_actions_repeat_the_last_one_with_their_probability():
    env = sticky_actions(WALK)
    chosen = np.random.default_rng(2).integers(0, 3, 8000).astype(np.int32)
    played = timesteps_of(env, chosen).cost[1:].astype(int)
    last = played[:-1]
    assert played[0] == chosen[0]
    assert ((played[1:] == chosen[1:]) | (played[1:] == last)).all()
    tells = chosen[1:] != last
    sticks = (played[1:] != chosen[1:])[tells]
    assert abs(sticks.mean() - 0.25) < 0.02
    assert abs(np.corrcoef(sticks[1:], sticks[:-1])[0, 1]) < 0.05
    always = timesteps_of(env, chosen, stickiness=1.0).cost[1:]
    assert (always == chosen[0]).all()
    never = timesteps_of(env, chosen, stickiness=0.0).cost[1:]
    np.testing.assert_array_equal(never, chosen)


def test_sticky_actions_never_repeat_an_action_that_became_illegal():
    env = sticky_actions(environments.walk(legal=True, observe="vector"), 1.0)
    chosen = np.asarray([2, 1, 0, 2, 0], np.int32)
    played = timesteps_of(env, chosen).cost[1:]
    np.testing.assert_array_equal(played, [2, 1, 1, 1, 1])  # 2 is illegal at odd steps


def test_a_sticky_vector_is_legal_if_all_its_components_are():
    env = sticky_actions(environments.crane(), 1.0)
    played = timesteps_of(env, np.int32([[1, 2], [0, 0], [1, 1]])).observation[1:]
    # After (1, 2) the first component may no longer be 1; after (0, 0) everything is legal.
    np.testing.assert_array_equal(played, [[1, 2], [0, 0], [0, 0]])


def test_sticky_actions_of_several_agents_are_repeated_where_all_are_legal():
    env = sticky_actions(make("signals"), 1.0)
    state, _ = env.reset(jax.random.key(0), env.params)
    action = {name: jnp.int32(i) for i, name in enumerate(env.agents)}
    mask = {name: jnp.arange(4) != 3 for name in env.agents}
    state = dataclasses.replace(state, last=action, any=jnp.bool_(True), legal_actions=mask)
    other = dict.fromkeys(env.agents, jnp.int32(3))
    repeated, _ = env.step(jax.random.key(1), state, other, env.params)
    assert {n: int(x) for n, x in repeated.last.items()} == {n: int(x) for n, x in action.items()}
    mask = mask | {env.agents[2]: jnp.arange(4) != 2}  # what this agent did is illegal now
    state = dataclasses.replace(state, legal_actions=mask)
    chosen, _ = env.step(jax.random.key(1), state, other, env.params)
    assert {int(x) for x in chosen.last.values()} == {3}


def test_a_repeat_is_that_many_steps_and_stops_at_an_end():
    env = action_repeat(WALK, 3)
    got = timesteps_of(env, np.ones(2, np.int32))
    np.testing.assert_array_equal(got.reward, [0, 1 + 2 + 3, 4 + 5])
    np.testing.assert_array_equal(got.cost, [0, 3, 2])
    np.testing.assert_array_equal(got.true_reward, [0, 6, 4])
    np.testing.assert_array_equal(got.reward_components["place"], [0, 6, 9])
    np.testing.assert_array_equal(got.observation[:, 0], [0, 3, 5])
    np.testing.assert_array_equal(got.metrics["inner_steps"], [0, 3, 5])
    np.testing.assert_array_equal(got.metrics["success"], [0, 1, 1])
    np.testing.assert_array_equal(got.terminated, [False, False, True])
    assert not got.truncated.any()
    np.testing.assert_array_equal(got.first, [True, False, False])

    one = timesteps_of(action_repeat(WALK, 1), ACTIONS[:2])
    inner = timesteps_of(WALK, ACTIONS[:2])
    jax.tree.map(np.testing.assert_array_equal, one.observation, inner.observation)
    np.testing.assert_array_equal(one.reward, inner.reward)


def test_a_clock_inside_a_repeat_counts_the_environments_steps():
    env = action_repeat(time_limit(WALK, 4), 3)
    assert env.max_steps == 2
    got = timesteps_of(env, np.zeros(2, np.int32))
    np.testing.assert_array_equal(got.truncated, [False, False, True])
    np.testing.assert_array_equal(got.metrics["inner_steps"], [0, 3, 4])
    nested = action_repeat(env, 2)
    assert nested.max_steps == 1
    got = timesteps_of(nested, np.zeros(1, np.int32))
    np.testing.assert_array_equal(got.metrics["inner_steps"], [0, 4])


def test_the_grid_of_actions():
    env = discretized_actions(environments.arm(), (3, 5), joint=False)
    actions = np.asarray(list(itertools.product(range(3), range(5))), np.int32)
    played = timesteps_of(env, actions).observation[1:]
    grid = [(a, b) for a in (-1, 0, 1) for b in (0, 1, 2, 3, 4)]
    np.testing.assert_array_equal(played, grid)
    joint = discretized_actions(environments.arm(), (3, 5))
    assert joint.action_space.n == 15
    played = timesteps_of(joint, np.arange(15, dtype=np.int32)).observation[1:]
    np.testing.assert_array_equal(played, grid)


def test_the_expert_plays_the_nearest_action_of_the_grid():
    env = discretized_actions(environments.arm(), 5)  # of 0.3 and 3.9 in steps of 0.5 and 1
    assert int(jax.jit(env.expert)(jnp.zeros(2), env.params)) == 3 * 5 + 4
    assert int(jax.jit(flat_actions(environments.crane()).expert)(None, ())) == 1 * 3 + 2


def test_the_ends_of_the_grid_are_the_bounds_exactly():
    arm = environments.arm()
    space = dataclasses.replace(arm.action_space, low=(-0.1, -0.7), high=(0.3, 1.1))
    env = discretized_actions(dataclasses.replace(arm, action_space=space), 7, joint=False)
    played = timesteps_of(env, np.int32([[0, 0], [6, 6]])).observation[1:]
    np.testing.assert_array_equal(played, np.float32([[-0.1, -0.7], [0.3, 1.1]]))


def test_combinations_are_legal_if_their_components_are():
    crane, env = environments.crane(), flat_actions(environments.crane())
    pairs = np.asarray(list(itertools.product(range(2), range(3))), np.int32)
    ours = timesteps_of(env, np.arange(6, dtype=np.int32))
    theirs = timesteps_of(crane, pairs)
    np.testing.assert_array_equal(ours.observation, theirs.observation)
    legal = theirs.legal_actions[:, 0][:, pairs[:, 0]] & theirs.legal_actions[:, 1][:, pairs[:, 1]]
    np.testing.assert_array_equal(ours.legal_actions, legal)
    assert 0 < legal.mean() < 1
