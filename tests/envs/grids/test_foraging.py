"""Level-based foraging: steps of lbforaging, levels and places at the start, the expert."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids.foraging import State
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

# Steps of lbforaging's class of version 3, with 3 agents, 2 pieces of food, in 6 x 6 cells and with
# a penalty of 0.1, some with an illegal action; without those that put two agents in one cell.
RECORDED = json.loads((Path(__file__).parent / "lbforaging_steps.json").read_text())


@pytest.mark.parametrize("told", RECORDED, ids=["all", "near", "grid"])
def test_steps_are_those_of_lbforaging(told):
    sight = told["sight"] if told["sight"] < 6 else 0
    env = make(
        "foraging", size=6, agents=3, foods=2, reward="each", sight=sight,
        observation=told["observation"], penalty=0.1,
    )  # fmt: skip
    cases = told["steps"]
    column = lambda name: np.array([case[name] for case in cases])
    food = np.zeros((len(cases), 2, 3), np.int32)
    for i, case in enumerate(cases):
        for j, (place, level) in enumerate(zip(case["food"], case["food_level"], strict=True)):
            food[i, j] = *place, level
    crowd = jax.vmap(crowds.gather)(column("place"))
    level, total = column("level").astype(np.int32), column("total").astype(np.int32)
    inner = State(crowd, level, food[..., :2], food[..., 2], total)
    outer = type(env.reset(random.key(0), env.params)[0])
    state = outer(inner, np.zeros(len(cases), np.int32))
    action = {n: column("action")[:, i].astype(np.int32) for i, n in enumerate(env.agents)}
    step = jax.jit(jax.vmap(env.step, in_axes=(None, 0, 0, None)))
    after, timestep = step(random.key(1), state, action, env.params)
    np.testing.assert_array_equal(after.inner.crowd.place, column("next_place"))
    np.testing.assert_allclose(timestep.reward, column("reward"), atol=1e-6)
    np.testing.assert_array_equal(timestep.terminated, column("done"))
    legal = np.stack([timestep.legal_actions[n] for n in env.agents], 1)
    np.testing.assert_array_equal(legal, column("next_legal"))
    seen = np.stack([timestep.observation[n] for n in env.agents], 1)
    np.testing.assert_array_equal(seen.reshape(len(cases), 3, -1), column("observation"))
    for i, case in enumerate(cases):
        left = after.inner.food_level[i] > 0
        now = np.concatenate([after.inner.food[i], after.inner.food_level[i][:, None]], 1)
        assert now[np.asarray(left)].tolist() == case["next_food"]


def test_grids_keep_the_rules_of_environments():
    check_environment(make("foraging", observation="grid", sight=2, reward="each"))


def test_starts():
    env = make("foraging", size=6, agents=4, foods=3, max_level=3, cooperative=True)
    keys = jax.random.split(random.key(2), 200)
    state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, env.params)[0].inner
    level, food = np.asarray(state.level), np.asarray(state.food)
    there = np.asarray(state.food_level) > 0
    assert set(np.unique(level)) == {1, 2, 3} and there[:, :2].sum() > 380
    least = np.sort(level, 1)[:, :3].sum(1, keepdims=True)
    assert ((state.food_level == least) | ~there).all()
    assert (state.total == state.food_level.sum(1)).all()
    inside = (food >= 1) & (food <= 4)
    assert inside[there].all()
    for row, on in zip(food, there, strict=True):
        for i in np.flatnonzero(on):
            for j in np.flatnonzero(on):
                gap = sorted(abs(row[i] - row[j]))
                assert i == j or (gap[1] > 1 and gap != [0, 2])
    places = np.asarray(state.crowd.place) @ [6, 1]
    assert all(len(set(row)) == 4 for row in places.tolist())


def test_the_expert_collects_all_and_chance_little():
    env = expert_channel(make("foraging", size=6, foods=2, cooperative=True))
    played = evaluate(env, expert_policy(env), random.key(3), 128)
    chance = evaluate(env, random_policy(env), random.key(4), 128)
    assert float(played.returns.mean()) > 0.95 and float(played.lengths.mean()) < 25
    assert float(chance.returns.mean()) < 0.5
    np.testing.assert_allclose(played.metrics["collected"], played.returns, atol=1e-5)


def test_bad_options_are_refused():
    with pytest.raises(UserError, match="The size of 'foraging' is 4"):
        make("foraging", size=4)
    with pytest.raises(UserError, match="The observation of 'foraging' is 'all'"):
        make("foraging", observation="all")
