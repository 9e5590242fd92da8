"""Choices of a solver: their exact values by play, and what is said of the attempts."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.strategies import (
    FIRST_KIND,
    FIRST_SOLVER,
    RIGHT,
    VOCABULARY,
    WRONG,
    exact_selectors,
)
from tests.envs.language.play import follow_expert, player, reset, until_end

ENV = envs.make("strategies")
PROMPT = 3


def attempts(env, order, number=256):
    """Return the states of texts and their time steps with solvers tried in `order`."""
    state, _ = reset(env, number)
    row = np.zeros((number, env.max_steps), int)
    for turn, solver in enumerate(order):
        row[:, PROMPT - 1 + 2 * turn] = FIRST_SOLVER + solver
    return state, player(env)(state, jnp.asarray(row))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_attempts_are_right_where_their_solver_is(order):
    """Rewards, replies, ends and what is reported, for all orders of solvers."""
    costs = np.array([0.1, 0.2, 0.3], np.float32)
    env = envs.make("strategies", costs=costs)
    state, t = attempts(env, order)
    solved_by = np.asarray(state.memory.solved_by)[:, order]
    within = np.asarray(until_end(t))
    reward = np.where(within, t.reward, 0)
    open_ = np.ones(len(solved_by), bool)
    for turn, solver in enumerate(order):
        place = PROMPT - 1 + 2 * turn
        right = open_ & solved_by[:, turn]
        np.testing.assert_allclose(reward[:, place], open_ * (right - costs[solver]), atol=1e-6)
        if turn < 2:
            np.testing.assert_array_equal(np.asarray(t.done)[open_, place], right[open_])
            failed = open_ & ~right
            assert (np.asarray(t.observation)[failed, place + 1] == WRONG).all()
            legal = np.asarray(t.legal_actions)[failed, place + 1]
            left = [FIRST_SOLVER + x for x in range(3) if x not in order[: turn + 1]]
            np.testing.assert_array_equal(np.flatnonzero(legal.any(0)), left)
        open_ &= ~right
    at_end = lambda name: np.where(within & t.done, t.metrics[name], 0).sum(1)
    np.testing.assert_array_equal(at_end("success"), solved_by[:, 0])
    np.testing.assert_array_equal(at_end("solved"), solved_by.any(1))
    assert VOCABULARY[RIGHT] == "!"


def test_values_of_choices_are_the_shares_of_right_answers():
    """Single solvers and the expert play with one attempt."""
    env = envs.make("strategies", attempts=1, costs=np.zeros(3, np.float32))
    known = exact_selectors(env.params)
    chances = np.asarray(env.params.chances)
    assert known.oracle == chances.max(-1).mean() and known.best_single == known.single.max()
    assert known.oracle > known.best_single + 0.1
    best = np.sort(chances, -1)
    assert (best[..., -1] > best[..., -2] + 0.04).all()  # nowhere do two solvers tie
    for solver in range(3):
        _, t = attempts(env, [solver], 20_000)
        np.testing.assert_allclose(t.reward[:, -1].mean(), known.single[solver], atol=0.015)
    state, t = follow_expert(env, 20_000)
    np.testing.assert_allclose(t.reward[:, -1].mean(), known.oracle, atol=0.015)
    text = np.asarray(state.text)
    np.testing.assert_array_equal(text[:, 0] - FIRST_KIND, state.memory.kind)
    np.testing.assert_array_equal(text[:, 1], state.memory.size)


def test_costs_change_who_is_best():
    """Dear programs: the best single solver is another one, and the expert follows."""
    costs = np.array([0.0, 0.0, 0.5], np.float32)
    env = envs.make("strategies", attempts=1, costs=costs)
    known = exact_selectors(env.params)
    assert known.single.argmax() != exact_selectors(ENV.params).single.argmax()
    _, t = follow_expert(env, 20_000)
    np.testing.assert_allclose(t.reward[:, -1].mean(), known.oracle, atol=0.015)


def test_sizes_are_checked():
    with pytest.raises(UserError, match="attempts is 4"):
        envs.make("strategies", attempts=4)
