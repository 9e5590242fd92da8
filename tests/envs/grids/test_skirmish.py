"""Skirmish: attacks, deaths, the scripted side and rewards at known states, and who wins."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids.skirmish import State, toward
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

STAY, NORTH, SOUTH, WEST, EAST, FIRST, SECOND = range(7)
ENV = make("skirmish", agents=2, enemies=2, size=5, hit_points=2, sight=2)
STEP = jax.jit(ENV.step)


def play(place, points, *actions):
    """One step of two agents, then two enemies, from places and points."""
    state, _ = ENV.reset(random.key(0), ENV.params)
    points = jnp.array(points, jnp.int32)
    crowd = dataclasses.replace(crowds.gather(jnp.array(place)), alive=points > 0)
    state = dataclasses.replace(state, inner=State(crowd, points))
    action = dict(zip(ENV.agents, map(jnp.int32, actions), strict=True))
    after, timestep = STEP(random.key(1), state, action, ENV.params)
    return after.inner, timestep


def test_it_keeps_the_rules_of_environments():
    check_environment(make("skirmish", agents=2, enemies=1, size=5, sight=0))


def test_attacks_come_first_and_at_the_same_time():
    place = [[2, 1], [4, 0], [2, 3], [0, 4]]
    after, timestep = play(place, [1, 2, 1, 2], FIRST, EAST)
    # Agent 0 and enemy 0 hit each other and die; the others walk.
    assert after.points.tolist() == [0, 2, 0, 2]
    assert after.crowd.alive.tolist() == [False, True, False, True]
    assert after.crowd.place[1].tolist() == [4, 1]
    assert float(timestep.reward) == pytest.approx(0.5 * 1 / 4)
    assert timestep.alive.tolist() == [False, True] and not bool(timestep.terminated)
    assert not np.any(timestep.observation["agent_0"])
    assert timestep.legal_actions["agent_0"].tolist() == [True] + 6 * [False]
    # What the dead do has no effect.
    again, _ = play(after.crowd.place, after.points, SOUTH, STAY)
    assert again.points.tolist()[0] == 0 and again.crowd.place[0].tolist() == [2, 1]


def test_the_last_enemy_pays_a_half_and_ends_the_fight():
    after, timestep = play([[2, 1], [0, 0], [2, 2], [4, 4]], [2, 2, 1, 0], FIRST, STAY)
    assert after.points.tolist() == [1, 2, 0, 0]
    assert float(timestep.reward) == pytest.approx(0.5 / 4 + 0.5) and bool(timestep.terminated)
    assert float(timestep.metrics["won"]) == 1 and float(timestep.metrics["survived"]) == 1
    lost = play([[2, 1], [0, 0], [2, 2], [4, 4]], [1, 0, 2, 2], STAY, STAY)[1]
    assert bool(lost.terminated) and float(lost.metrics["won"]) == 0 == float(lost.reward)


def test_enemies_attack_the_nearest_and_of_equal_ones_the_weakest():
    near = play([[2, 1], [2, 3], [2, 2], [0, 0]], [2, 1, 2, 0], STAY, STAY)[0]
    assert near.points.tolist() == [2, 0, 2, 0]
    nearer = play([[2, 1], [2, 4], [2, 2], [0, 0]], [2, 1, 2, 0], STAY, STAY)[0]
    assert nearer.points.tolist() == [1, 1, 2, 0]
    walks = play([[4, 0], [4, 1], [0, 2], [0, 4]], [2, 2, 2, 0], STAY, STAY)[0]
    assert walks.crowd.place[2].tolist() == [1, 2] and walks.points.tolist() == [2, 2, 2, 0]
    assert toward(jnp.array([0, 0]), jnp.array([1, -3])).tolist() == [0, -1]


@pytest.mark.parametrize("points", [2, 30, 2000])
def test_scripts_are_the_same_for_any_number_of_points(points):
    env = make("skirmish", agents=2, enemies=2, size=5, hit_points=points, sight=0)
    state, _ = env.reset(random.key(0), env.params)
    crowd = crowds.gather(jnp.array([[0, 0], [2, 3], [2, 4], [4, 4]]))
    state = dataclasses.replace(state, inner=State(crowd, jnp.full(4, points, jnp.int32)))
    orders = env.expert(state, env.params)
    assert int(orders["agent_1"]) == FIRST  # in reach, and enemy 1 is not
    after, _ = env.step(random.key(1), state, orders, env.params)
    # Enemy 0 attacks agent 1, which is near, and enemy 1 walks toward it.
    assert after.inner.points.tolist() == [points, points - 1, points - 1, points]
    assert after.inner.crowd.place[3].tolist() == [3, 4]


def test_attacks_out_of_reach_are_illegal_and_do_nothing():
    after, timestep = play([[0, 0], [4, 0], [0, 3], [4, 4]], [2, 2, 2, 2], FIRST, STAY)
    assert after.points.tolist() == [2, 2, 2, 2] and float(timestep.reward) == 0
    # Enemy 0 came to column 2, in reach of agent 0 alone.
    assert timestep.legal_actions["agent_0"].tolist()[FIRST:] == [True, False]
    assert timestep.legal_actions["agent_1"].tolist()[FIRST:] == [False, False]


def test_agents_see_what_is_near():
    _, timestep = play([[0, 0], [1, 1], [1, 3], [4, 4]], [2, 1, 2, 2], STAY, STAY)
    # Enemy 0 is in reach of agent 1 and took its last point; enemy 1 walked up to row 3.
    seen = np.asarray(timestep.observation["agent_0"])
    np.testing.assert_allclose(seen[:3], [0, 0, 1])
    assert not seen[3:].any()  # agent 1 is dead, and enemies are out of sight
    _, timestep = play([[0, 0], [1, 1], [1, 2], [4, 4]], [2, 2, 1, 2], STAY, STAY)
    seen = np.asarray(timestep.observation["agent_0"])
    np.testing.assert_allclose(seen[3:7], [1, 0.2, 0.2, 0.5])
    np.testing.assert_allclose(seen[7:12], [1, 0.2, 0.4, 0.5, 0])


@pytest.mark.slow
def test_the_expert_wins_more_often_than_it_loses_and_random_play_never():
    env = expert_channel(make("skirmish"))
    expert = evaluate(env, expert_policy(env), random.key(0), 256)
    played = evaluate(env, random_policy(env), random.key(0), 256)
    assert float(expert.metrics["won"].mean()) > 0.6 > 0.05 > float(played.metrics["won"].mean())


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"agents": 1}, "from 2 up"), ({"size": 4}, "from 5 up"), ({"enemies": 8}, "are 8; 7 rows")],
)
def test_bad_options_are_one_sentence(settings, match):
    with pytest.raises(UserError, match=match):
        make("skirmish", **settings)
