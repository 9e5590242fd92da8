"""Pursuit: who is there, who is caught, where evaders flee to, and what pursuers see."""

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
from jaxrl.envs.grids.pursuit import State
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

STAY, NORTH, SOUTH, WEST, EAST = range(5)
ENV = make("pursuit", size=5, agents=3, evaders=2, sight=2)
STEP = jax.jit(ENV.step)


def settle(place, alive=(True,) * 5):
    """Return the state of a crowd."""
    state, _ = ENV.reset(random.key(0), ENV.params)
    crowd = dataclasses.replace(crowds.gather(jnp.array(place)), alive=jnp.array(alive))
    return dataclasses.replace(state, inner=State(crowd))


def play(place, actions, alive=(True,) * 5, key=1, **params):
    """Take one step; return the crowd and the time step."""
    action = dict(zip(ENV.agents, map(jnp.int32, actions), strict=True))
    own = dataclasses.replace(ENV.params, **params)
    after, timestep = STEP(random.key(key), settle(place, alive), action, own)
    return after.inner.crowd, timestep


def test_it_keeps_the_rules_of_environments():
    check_environment(ENV)


def test_an_evader_is_caught_by_two_beside_it():
    place = [[0, 1], [2, 0], [4, 4], [0, 0], [3, 3]]
    crowd, t = play(place, (STAY, NORTH, STAY), nimble=0.0)
    assert np.asarray(crowd.place[1]).tolist() == [1, 0]
    assert np.asarray(crowd.alive).tolist() == [True] * 3 + [False, True]
    assert float(t.reward) == 0.5 and float(t.metrics["caught"]) == 0.5 and not t.terminated
    # One is not enough, nor two at a corner.
    crowd, t = play([[0, 1], [1, 1], [4, 4], [0, 0], [3, 3]], (STAY,) * 3, nimble=0.0)
    assert float(t.reward) == 0 and crowd.alive.all()
    # One that is absent does not count, and one alone is enough where there is no other.
    place, two = [[0, 1], [1, 0], [4, 4], [0, 0], [3, 3]], (True, False, True, True, True)
    assert float(play(place, (STAY,) * 3, two, nimble=0.0)[1].reward) == 0
    alone = (True, False, False, True, False)
    crowd, t = play(place, (STAY,) * 3, alone, nimble=0.0)
    assert float(t.reward) == 0.5 and t.terminated
    # All of three that are needed.
    assert float(play(place, (STAY,) * 3, nimble=0.0, needed=3)[1].reward) == 0


def test_slots_of_the_absent_are_masked():
    alive = (True, False, True, True, True)
    place = [[1, 1], [1, 2], [4, 0], [1, 3], [3, 4]]
    crowd, t = play(place, (EAST, SOUTH, STAY), alive, nimble=0.0)
    assert np.asarray(crowd.place[:2]).tolist() == [[1, 2], [1, 2]]  # it is in nobody's way
    assert np.asarray(t.alive).tolist() == [True, False, True]
    assert not np.asarray(t.observation["agent_1"]).any()
    assert np.asarray(t.legal_actions["agent_1"]).tolist() == [True] + [False] * 4
    assert not np.asarray(t.privileged["state"])[3:6].any()
    for present, expected in ((0, {2, 3}), (1, {1}), (3, {3})):
        params = dataclasses.replace(ENV.params, present=present)
        keys = jax.random.split(random.key(3), 200)
        first = jax.jit(jax.vmap(lambda key, p=params: ENV.reset(key, p)[1]))(keys)
        number = np.asarray(first.alive).sum(1)
        assert set(number) == expected
        assert (np.sort(np.asarray(first.alive))[:, ::-1] == np.asarray(first.alive)).all()
        np.testing.assert_array_equal(np.asarray(first.metrics["pursuers"]), number)


def test_what_pursuers_see():
    place, alive = [[1, 1], [3, 2], [1, 4], [0, 1], [4, 4]], (True,) * 4 + (False,)
    _, t = play(place, (STAY,) * 3, alive, nimble=0.0)
    views = {i: np.asarray(t.observation[f"agent_{i}"]).reshape(5, 3) for i in range(3)}
    for i in range(3):
        np.testing.assert_allclose(views[i][0], [place[i][0] / 4, place[i][1] / 4, 1])
        for row, j in enumerate([j for j in range(5) if j != i]):
            way = np.subtract(place[j], place[i])
            seen = alive[j] and (np.abs(way) <= 2).all()
            expected = [*way / 5, 1] if seen else [0, 0, 0]
            np.testing.assert_allclose(views[i][row + 1], expected, atol=1e-6)
    whole = np.asarray(t.privileged["state"]).reshape(5, 3)
    expected = [
        [r / 4, c / 4, 1] if there else [0, 0, 0]
        for (r, c), there in zip(place, alive, strict=True)
    ]
    np.testing.assert_allclose(whole, expected)


def test_no_more_than_most_are_drawn():
    env = make("pursuit", size=5, agents=5, most=3)
    reset = jax.jit(jax.vmap(lambda key: env.reset(key, env.params)[1]))
    number = np.asarray(reset(jax.random.split(random.key(0), 200)).alive).sum(1)
    assert set(number) == {2, 3}


def test_what_is_listed_is_what_is_seen():
    listed = make("pursuit", size=5, agents=3, evaders=2, sight=2, listed=True)
    check_environment(listed)
    for key in range(5):
        plain = ENV.reset(random.key(key), ENV.params)[1].observation
        rows = listed.reset(random.key(key), listed.params)[1].observation
        for name in ENV.agents:
            own, others = np.asarray(rows[name]["own"]), np.asarray(rows[name]["others"])
            whole = np.concatenate([own[:3], others.ravel(), own[3:]])
            np.testing.assert_array_equal(whole, plain[name])


def test_evaders_flee_from_the_nearest_pursuer():
    # From the corner's neighbor, with a pursuer at its west: north, south or east are farther.
    place = [[2, 1], [4, 0], [4, 2], [2, 2], [0, 4]]
    goals = set()
    for key in range(40):
        crowd, _ = play(place, (STAY,) * 3, key=key, nimble=1.0)
        goals.add(tuple(np.asarray(crowd.place[3]).tolist()))
    assert goals == {(2, 3), (1, 2)}  # at the south there is another one
    still = [play(place, (STAY,) * 3, key=key, nimble=0.3)[0].place[3] for key in range(60)]
    share = np.mean([(np.asarray(p) == [2, 2]).all() for p in still])
    assert share == pytest.approx(0.7, abs=0.2)
    # A cell that somebody is in is no way out.
    blocked = [[2, 1], [2, 3], [4, 2], [2, 2], [1, 2]]
    crowd, _ = play(blocked, (STAY,) * 3, nimble=1.0, needed=4)
    assert tuple(np.asarray(crowd.place[3]).tolist()) in {(2, 2), (3, 2)}


def test_the_expert_catches_more_than_random_play():
    env = make("pursuit")
    advised = expert_channel(env)
    expert = evaluate(advised, expert_policy(advised), random.key(0), 64).metrics["caught"]
    played = evaluate(env, random_policy(env), random.key(0), 64).metrics["caught"]
    assert float(expert.mean()) > 0.5 and float(played.mean()) < 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"agents": 1}, "agents"), ({"size": 3}, "size"), ({"agents": 15, "size": 4}, "size")],
)
def test_other_fields_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make("pursuit", **settings)
