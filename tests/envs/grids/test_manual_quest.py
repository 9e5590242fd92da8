"""Manual quest: who meets what, the manual, the pairings of kinds and roles, and the expert."""

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
from jaxrl.envs.grids.manual_quest import GOAL, KINDS, State, castings
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

STAY, NORTH, SOUTH, WEST, EAST = range(5)
ENV = make("manual_quest", size=4)
STEP = jax.jit(ENV.step)
# Two goals at (0, 1) and (3, 2), two enemies at (1, 0) and (2, 3).
ENTITY, KIND, ROLE = [[0, 1], [1, 0], [3, 2], [2, 3]], [2, 0, 4, 5], [1, 0, 1, 0]


def play(place, first, second, there=(True,) * 4):
    state, _ = ENV.reset(random.key(0), ENV.params)
    numbers = lambda x: jnp.array(x, jnp.int32)
    crowd = crowds.gather(numbers(place))
    rest = (numbers(ENTITY), numbers(KIND), numbers(ROLE), jnp.array(there), numbers([2, 0, 3, 1]))
    state = dataclasses.replace(state, inner=State(crowd, *rest))
    action = {"agent_0": jnp.int32(first), "agent_1": jnp.int32(second)}
    after, timestep = STEP(random.key(1), state, action, ENV.params)
    return after.inner, timestep


def test_it_keeps_the_rules_of_environments():
    check_environment(ENV)


def test_goals_pay_and_enemies_end_the_episode():
    after, timestep = play([[0, 0], [3, 3]], EAST, STAY)
    assert float(timestep.reward) == 0.5 and not bool(timestep.terminated)
    assert after.there.tolist() == [False, True, True, True]
    assert float(timestep.metrics["won"]) == 0
    assert not np.any(timestep.observation["agent_1"]["entities"][0])
    won = play([[0, 0], [3, 3]], EAST, WEST)[1]
    assert float(won.reward) == 1 and bool(won.terminated) and float(won.metrics["won"]) == 1
    lost = play([[0, 0], [3, 3]], SOUTH, WEST)[1]
    assert float(lost.reward) == -0.5 and bool(lost.terminated) and float(lost.metrics["won"]) == 0
    last = play([[0, 0], [3, 3]], STAY, WEST, there=(False, True, True, True))[1]
    assert float(last.reward) == 0.5 and bool(last.terminated) and float(last.metrics["won"]) == 1


def test_agents_see_entities_from_both_places_and_the_manual():
    timestep = play([[0, 0], [3, 3]], STAY, STAY)[1]
    for i, places in enumerate(([[0, 0], [3, 3]], [[3, 3], [0, 0]])):
        seen = timestep.observation[f"agent_{i}"]
        rows = np.asarray(seen["entities"])
        np.testing.assert_array_equal(rows[:, :KINDS], np.eye(KINDS)[KIND])
        for k, at in enumerate(places):
            way = (np.array(ENTITY) - at) / 4
            np.testing.assert_allclose(rows[:, KINDS + 2 * k : KINDS + 2 * k + 2], way)
        np.testing.assert_allclose(
            seen["agents"], np.array([*places[0], *np.subtract(places[1], places[0])]) / 4
        )
        manual = np.asarray(seen["manual"]).reshape(4, 2)
        assert manual.tolist() == [[4, 7], [2, 7], [5, 6], [0, 6]]
    assert timestep.legal_actions["agent_0"].tolist() == [True, False, True, False, True]


def test_pairings_hold_out_what_they_say():
    train, held_out, every = (castings(x) for x in ("train", "held_out", "all"))
    assert len(every) == 15 * 6 == len(train) + len(held_out)
    assert not np.isin(train[:, :2], [0, 1]).any() and not np.isin(train[:, 2:], [2, 3]).any()
    odd = np.isin(held_out[:, :2], [0, 1]).any(1) | np.isin(held_out[:, 2:], [2, 3]).any(1)
    assert odd.all()
    env = make("manual_quest", pairings="held_out")
    state = jax.vmap(lambda key: env.reset(key, env.params)[0])(jax.random.split(random.key(0), 64))
    goals = np.asarray(state.inner.role) == GOAL
    kind = np.asarray(state.inner.kind)
    wrong = (goals & (kind < 2)) | (~goals & ((kind == 2) | (kind == 3)))
    assert wrong.any(1).all() and (goals.sum(1) == 2).all()
    assert all(len(set(row)) == 4 for row in kind)


@pytest.mark.slow
def test_the_expert_wins():
    env = expert_channel(make("manual_quest", pairings="all"))
    expert = evaluate(env, expert_policy(env), random.key(0), 256)
    played = evaluate(env, random_policy(env), random.key(0), 256)
    assert float(expert.metrics["won"].mean()) > 0.8 > 0.2 > float(played.metrics["won"].mean())


@pytest.mark.parametrize(
    ("settings", "match"), [({"size": 3}, "from 4 up"), ({"pairings": "no"}, "'train' or")]
)
def test_bad_options_are_one_sentence(settings, match):
    with pytest.raises(UserError, match=match):
        make("manual_quest", **settings)
