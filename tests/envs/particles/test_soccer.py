"""Soccer: the ball, goals, walls, what players see and are paid, the scripted teams, one team."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.particles import soccer as s
from jaxrl.envs.particles.soccer_players import soccer_against, soccer_team
from jaxrl.envs.wrappers.one_team import one_team
from jaxrl.evaluation.evaluate import evaluate

ENV = make("soccer")
STEP = jax.jit(ENV.step)
FAR = [[-1.0, 0.7], [-1.0, -0.7], [1.0, 0.7], [1.0, -0.7]]


def place(players=FAR, ball=(0.0, 0.0), velocity=None, roll=(0.0, 0.0)):
    """Return a state with players [4, 2] and ball at these places."""
    state, _ = ENV.reset(random.key(0), ENV.params)
    velocity = np.zeros((4, 2)) if velocity is None else velocity
    number = lambda *x: jnp.asarray(np.concatenate(x), jnp.float32)
    inner = dataclasses.replace(
        state.inner, place=number(players, [ball]), velocity=number(velocity, [roll])
    )
    return dataclasses.replace(state, inner=inner)


def step(state, push=((0, 0),) * 4, env=ENV):
    acts = {n: jnp.asarray(x, jnp.float32) for n, x in zip(env.agents, push, strict=True)}
    state, timestep = STEP(random.key(1), state, acts, env.params)
    return state, state.inner, timestep


def test_soccer_keeps_the_rules_of_environments():
    check_environment(ENV)
    check_environment(make("soccer", players=1, actions="discrete"))
    with pytest.raises(UserError, match="The players of 'soccer' is 0"):
        make("soccer", players=0)


def test_a_ball_rolls_loses_speed_and_bounces_off_the_lines():
    _, inner, timestep = step(place(roll=(0.5, -0.2)))
    np.testing.assert_allclose(inner.place[4], [0.05, -0.02], atol=1e-6)
    np.testing.assert_allclose(inner.velocity[4], [0.475, -0.19], atol=1e-6)
    np.testing.assert_allclose(timestep.reward, 0.1 * 0.0475 * np.array([1, 1, -1, -1]), atol=1e-6)
    # Beside the goal it comes back as far as it went beyond the line, at 4/5 of its speed.
    _, inner, timestep = step(place(ball=(1.15, 0.5), roll=(1.0, 1.0)))
    np.testing.assert_allclose(inner.place[4], [1.15, 0.6], atol=1e-6)
    np.testing.assert_allclose(inner.velocity[4], [-0.76, 0.95], atol=1e-6)
    assert not timestep.terminated
    _, inner, _ = step(place(ball=(0.0, -0.75), roll=(0.0, -1.0)))
    np.testing.assert_allclose(inner.place[4], [0.0, -0.75], atol=1e-6)
    np.testing.assert_allclose(inner.velocity[4], [0.0, 0.76], atol=1e-6)


@pytest.mark.parametrize(("side", "won"), [(1, 1.0), (-1, 0.0)])
def test_a_goal_ends_the_game_and_is_paid_to_the_team(side, won):
    state = place(ball=(side * 1.15, 0.2), roll=(side * 1.0, 0.0))
    _, _, timestep = step(state)
    assert timestep.terminated and not timestep.truncated
    goal = side * (1 + 0.1 * 0.95 * 0.1)
    np.testing.assert_allclose(timestep.reward, goal * np.array([1, 1, -1, -1]), rtol=1e-5)
    assert float(timestep.metrics["won"]) == won and float(timestep.metrics["scored"]) == 1
    _, inner, missed = step(place(ball=(side * 1.15, 0.31), roll=(side * 1.0, 0.0)))
    assert not missed.terminated and float(missed.metrics["won"]) == 0.5
    np.testing.assert_allclose(inner.velocity[4], [-side * 0.76, 0.0], atol=1e-6)


def test_players_push_the_ball_but_not_through_the_edge():
    state = place([[-0.15, 0.0], *FAR[1:]], velocity=[[1.0, 0.0]] + [[0, 0]] * 3)
    state, inner, timestep = step(state)
    # They overlap by 0.01 m: each is pushed by 200 N/m, and by a trace of the soft margin.
    np.testing.assert_allclose(inner.velocity[4], [0.2, 0.0], atol=0.01)
    np.testing.assert_allclose(inner.velocity[0], [0.75 - 0.2, 0.0], atol=0.01)
    assert int(inner.toucher) == 0 and bool(timestep.privileged["event"])
    # The same player again is no event, another one is.
    _, inner, timestep = step(state)
    assert int(inner.toucher) == 0 and not bool(timestep.privileged["event"])
    near = [*FAR[:3], [0.1, 0.0]]
    moved = dataclasses.replace(place(near).inner, toucher=jnp.int32(0))
    _, inner, timestep = step(dataclasses.replace(state, inner=moved))
    assert int(inner.toucher) == 3 and bool(timestep.privileged["event"])
    state = place([[-1.35, 0.95], *FAR[1:]], velocity=[[-1.0, 0.9]] + [[0, 0]] * 3)
    _, inner, _ = step(state)
    np.testing.assert_allclose(inner.place[0], [-1.4, 1.0], atol=1e-6)
    np.testing.assert_allclose(inner.velocity[0], [0, 0], atol=1e-6)


def test_both_teams_see_and_push_in_the_same_field():
    """The game turned by 180 degrees, with the teams exchanged, is the same game."""
    rng = np.random.default_rng(0)
    places, velocity = rng.uniform(-0.5, 0.5, (2, 4, 2))
    ball, roll = rng.uniform(-0.3, 0.3, (2, 2))
    push = rng.uniform(-1, 1, (4, 2))
    swap = [2, 3, 0, 1]
    _, _, one = step(place(places, ball, velocity, roll), push)
    turned = place(-places[swap], -ball, -velocity[swap], -roll)
    _, _, other = step(turned, push[swap])
    for i, name in enumerate(ENV.agents):
        exchanged = ENV.agents[swap[i]]
        np.testing.assert_allclose(one.observation[name], other.observation[exchanged], atol=1e-5)
    np.testing.assert_allclose(one.reward, -other.reward, atol=1e-6)
    np.testing.assert_allclose(
        one.privileged["skills"], other.privileged["skills"][np.array(swap)], atol=1e-5
    )


def test_an_observation_is_that_of_the_docstring():
    _, inner, timestep = step(place(velocity=np.arange(8).reshape(4, 2) / 20, roll=(0.1, 0.2)))
    x, v = np.asarray(inner.place), np.asarray(inner.velocity)
    rest = [z for j in (0, 2, 3) for z in (*(x[j] - x[1]), *v[j])]
    seen = [*v[1], *x[1], *(x[4] - x[1]), *v[4], *rest]
    np.testing.assert_allclose(timestep.observation["left_1"], seen, atol=1e-6)
    rest = [-z for j in (2, 0, 1) for z in (*(x[j] - x[3]), *v[j])]
    seen = [*-v[3], *-x[3], *(x[3] - x[4]), *-v[4], *rest]
    np.testing.assert_allclose(timestep.observation["right_1"], seen, atol=1e-6)


def test_skills_are_paid_for_what_they_are_called():
    players = [[-0.9, 0.0], [-0.6, 0.0], [0.4, 0.4], [1.0, -0.7]]
    state = place(players, velocity=[[0.8, 0], [0, 0], [0, 0], [0, 0]], roll=(0.5, 0.0))
    _, _, timestep = step(state)
    attack, guard, support = np.asarray(timestep.privileged["skills"]).T
    # The first player runs at 0.6 m/s straight at the place behind the ball, which rolls to the
    # goal at 0.475 m/s; the second stands about where a guard does.
    np.testing.assert_allclose(attack[0], 0.6 + 2 * 0.475, atol=0.01)
    np.testing.assert_allclose(attack[1], 2 * 0.475, atol=0.01)
    np.testing.assert_allclose(guard[1], -abs(-0.6 - (0.05 - 1.2) / 2), atol=0.01)
    ahead = np.array([0.05 - 0.4, 0.4])  # as the third player's team attacks to the left
    np.testing.assert_allclose(support[2], -np.linalg.norm(ahead - [0.4, 0.4]), atol=0.01)


def test_scripted_teams_play_as_well_as_they_should():
    against = lambda name: one_team(ENV, soccer_team(name))
    won = {
        (one, other): float(
            evaluate(against(other), soccer_team(one), random.key(2), 128).metrics["won"].mean()
        )
        for one, other in (("team", "idle"), ("team", "random"), ("team", "team"))
    }
    assert won["team", "idle"] > 0.75 and won["team", "random"] > 0.7
    assert 0.35 < won["team", "team"] < 0.65


def test_one_team_is_the_game_with_the_others_played():
    env = soccer_against("team")
    check_environment(env)
    assert env.agents == ("left_0", "left_1")
    state, timestep = env.reset(random.key(3), env.params)
    assert timestep.reward.shape == () and timestep.privileged["skills"].shape == (2, 3)
    acts = {"left_0": jnp.asarray([0.3, -1.0]), "left_1": jnp.asarray([1.0, 0.2])}
    after, seen = jax.jit(env.step)(random.key(4), state, acts, env.params)
    whole = state.timestep.observation
    acts |= {n: s.team(whole[n], 2) for n in ("right_0", "right_1")}
    _, expected = STEP(random.key(5), state.inner, acts, ENV.params)
    np.testing.assert_allclose(
        seen.observation["left_1"], expected.observation["left_1"], atol=1e-6
    )
    np.testing.assert_allclose(seen.reward, expected.reward[0], atol=1e-6)
    np.testing.assert_allclose(
        after.timestep.observation["right_0"], expected.observation["right_0"], atol=1e-6
    )
    with pytest.raises(UserError, match="needs agents in two equal teams"):
        one_team(make("simple_tag"), soccer_team("idle"))
    with pytest.raises(UserError, match="team"):
        soccer_team("x")
