"""A maze walked by plans: what is legal and paid, and the expert, by simulation in Python."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment
from jaxrl.envs.language.text_maze import carve, distances
from tests.envs.language.play import follow_expert, player, reset, until_end

SIZE, PLANS, MOVES = 4, 4, 2
AFTER = carve(SIZE, openings=2, seed=0)
AWAY = distances(AFTER)
WAIT = SIZE + 4


def test_it_keeps_the_rules_of_environments():
    check_environment(envs.make("planned_maze", size=2, plans=2))


def test_the_expert_reaches_every_plan_and_the_goal_on_a_shortest_way():
    env = envs.make("planned_maze")
    state, t = follow_expert(env, 128)
    text = np.asarray(state.text)
    start, goal = text[:, 0] * SIZE + text[:, 1], text[:, 2] * SIZE + text[:, 3]
    running = until_end(t)
    np.testing.assert_array_equal(jnp.where(running, t.reward, 0).sum(1), 1)
    plans = -(-AWAY[start, goal] // MOVES)
    reached = jnp.where(running, t.privileged["subgoal_reward"], 0).sum(1)
    np.testing.assert_array_equal(reached, plans)
    # The prompt, two digits of each plan, and a word and two digits for each move but the last.
    steps = 3 + 2 * plans + 3 * AWAY[start, goal] - 2
    np.testing.assert_array_equal(running.sum(1), steps)


def _follow(env, choose, number=64):
    """Simulate episodes in Python: `choose(kind, cell, plan) -> tokens`. Return actions [N, T], and
    for each episode a list of (step, reward, subgoal reward) of its words."""
    state, _ = reset(env, number)
    text = np.asarray(state.text)
    actions, events = np.zeros((number, env.max_steps), np.int32), []
    for n in range(number):
        cell, goal = text[n, 0] * SIZE + text[n, 1], text[n, 2] * SIZE + text[n, 3]
        place, told, done = 3, [], False
        for _ in range(PLANS):
            plan_tokens = choose("plan", cell, None)
            actions[n, place : place + 2] = plan_tokens
            place += 2
            plan, waits = plan_tokens[0] * SIZE + plan_tokens[1], False
            for _ in range(MOVES):
                word = WAIT if waits else choose("word", cell, plan)[0]
                actions[n, place] = word
                cell = cell if waits else AFTER[cell, word - SIZE]
                arrives = not waits and cell == plan
                waits |= arrives
                done = cell == goal
                told.append((place, float(done), float(arrives)))
                if done:
                    break
                place += 3  # and the reply
            if done:
                break
        events.append(told)
    return state, jnp.asarray(actions), events


def test_random_plans_and_words_are_paid_as_a_simulation_says():
    env, rng = envs.make("planned_maze"), np.random.default_rng(0)

    def choose(kind, cell, plan):
        if kind == "plan":
            return rng.integers(0, SIZE, 2)
        near = [k for k in range(4) if AFTER[cell, k] == plan]
        return [SIZE + (near[0] if near else rng.integers(0, 4))]

    state, actions, events = _follow(env, choose)
    t = player(env)(state, actions)
    arrived = 0
    for n, told in enumerate(events):
        reward, subgoal = np.zeros((2, actions.shape[1]))
        for place, paid, reached in told:
            reward[place], subgoal[place] = paid, reached
        last = told[-1][0] + 1
        np.testing.assert_array_equal(t.reward[n, :last], reward[:last])
        np.testing.assert_array_equal(t.privileged["subgoal_reward"][n, :last], subgoal[:last])
        arrived += subgoal.sum()
    assert arrived > 10


def test_only_what_makes_sense_is_legal():
    env = envs.make("planned_maze")
    _, t = follow_expert(env, 8)
    running, decision = until_end(t), t.tokens["decision"]
    plan, legal = t.tokens["plan"], t.legal_actions
    sees = lambda where: np.unique(np.asarray(legal)[np.asarray(where)], axis=0)
    going_on = running & ~t.done
    np.testing.assert_array_equal(sees(going_on & decision & plan), [[1] * SIZE + [0] * 5])
    words = sees(going_on & decision & ~plan)
    assert [0] * SIZE + [1] * 4 + [0] in words.tolist()


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="plans and moves at least 1"):
        envs.make("planned_maze", plans=0)
