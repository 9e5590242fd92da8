"""Cross-play, ratings and mixtures, by policies whose moves are known."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.evaluation import matches
from jaxrl.evaluation.evaluate import evaluate

KEY = random.key(0)
PAYOFF = np.asarray([[0.0, -1, 3], [2, 0, -1], [-1, 1, 0]], np.float32)  # of the first player
ROCK, PAPER, SCISSORS = np.eye(3, dtype=np.float32) * 1e3


def play(logits, timestep, memory, key, greedy):
    action = jax.random.categorical(key, jnp.broadcast_to(logits, (*timestep.role.shape, 3)))
    return action.astype(jnp.int32), memory, {}


POLICY = Policy(play, lambda n: ())


def game():
    return envs.make("rock_paper_scissors", payoff=PAYOFF)


def test_cross_play_gives_each_pair_its_payoff_on_both_sides():
    rows, columns = np.stack([ROCK, SCISSORS]), np.stack([ROCK, PAPER, SCISSORS])
    found = matches.cross_play(game(), POLICY, rows, columns, key=KEY, games=4)
    choices = [0, 2]
    expected = np.asarray([[(PAYOFF[i, j] - PAYOFF[j, i]) / 2 for j in range(3)] for i in choices])
    np.testing.assert_allclose(found.row, expected)
    np.testing.assert_allclose(found.column, -expected)
    won = [
        [(np.sign(PAYOFF[i, j]) - np.sign(PAYOFF[j, i]) + 2) / 4 for j in range(3)] for i in choices
    ]
    np.testing.assert_allclose(found.won, won)


def test_sides_of_a_mixture_draw_their_own_members_and_keep_them():
    members, weights = np.stack([ROCK, PAPER, SCISSORS]), jnp.asarray([0.5, 0.0, 0.5])
    policy = matches.mixture(game(), POLICY, members, weights)
    timestep = game().reset(KEY, game().params)[1]
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (600, *x.shape)), timestep)
    act = jax.jit(lambda state, many, memory: policy.act(state, many, memory, KEY, False))
    action, memory, _ = act(policy.state, many, policy.memory(600))
    drawn = memory.member
    np.testing.assert_array_equal(action, drawn[:, 0])
    assert set(np.asarray(drawn).ravel()) == {0, 2}
    assert 0.3 < (drawn[:, 0] != drawn[:, 1]).mean() < 0.7
    second = dataclasses.replace(many, role=jnp.ones(600, jnp.int32))
    other = dataclasses.replace(policy.state, weights=jnp.asarray([0.0, 1.0, 0.0]))
    action, kept, _ = act(other, second, memory)
    np.testing.assert_array_equal(kept.member, drawn)
    np.testing.assert_array_equal(action, drawn[:, 1])


def echo(start, timestep, memory, key, greedy):
    """Play `start` first, and then the choice after the last own one."""
    action = jnp.where(memory < 0, start, (memory + 1) % 3).astype(jnp.int32)
    return action, action, {}


def test_sides_remember_their_own_moves_alone():
    """The same member on both sides always draws; rock to paper to scissors loses each round to
    paper to scissors to rock."""
    env = envs.make("repeated_rock_paper_scissors", rounds=4)
    policy = Policy(echo, lambda n: jnp.full(n, -1, jnp.int32))
    members = jnp.asarray([0, 1])
    found = matches.cross_play(env, policy, members, members, key=KEY, games=2)
    np.testing.assert_allclose(found.row, [[0, -4], [4, 0]])
    only = matches.mixture(env, policy, members, jnp.asarray([0.0, 1.0]))
    returns = evaluate(env, only, KEY, 8, False).returns
    np.testing.assert_allclose(returns, 0)
    alone = matches.both_sides(Policy(echo, policy.memory, jnp.asarray(0)))
    timestep = jax.tree.map(lambda x: x[None], env.reset(KEY, env.params)[1])
    second = dataclasses.replace(timestep, role=jnp.ones(1, jnp.int32))
    memory = alone.memory(1)
    for seen, expected in ((timestep, 0), (second, 0), (timestep, 1), (second, 1)):
        action, memory, _ = alone.act(alone.state, seen, memory, KEY, False)
        assert action[0] == expected
    assert matches.both_sides(POLICY) is POLICY


def test_elo_of_two_is_the_logarithm_of_their_odds():
    won, games = jnp.asarray([[0.0, 3], [1, 0]]), jnp.asarray([[0.0, 4], [4, 0]])
    rating = matches.elo(won, games, prior=0.0)
    np.testing.assert_allclose(rating[0] - rating[1], 400 * np.log10(3), rtol=1e-4)
    np.testing.assert_allclose(rating.sum(), 0, atol=1e-3)
    unbeaten = matches.elo(jnp.asarray([[0.0, 4], [0, 0]]), games, prior=2.0)
    np.testing.assert_allclose(unbeaten[0] - unbeaten[1], 400 * np.log10(5 / 1), rtol=1e-4)


def test_elo_of_many_is_the_fixed_point_of_bradley_terry():
    """Zermelo's iteration: strength_i = wins_i / sum_j games_ij / (strength_i + strength_j)."""
    games = np.asarray([[0.0, 8, 4, 0], [8, 0, 6, 2], [4, 6, 0, 9], [0, 2, 9, 0]])
    won = np.asarray([[0.0, 5, 3, 0], [3, 0, 2, 1.5], [1, 4, 0, 6], [0, 0.5, 3, 0]])
    strength = np.ones(4)
    for _ in range(3000):
        strength = won.sum(1) / (games / (strength[:, None] + strength)).sum(1)
    expected = 400 * np.log10(strength)
    found = matches.elo(jnp.asarray(won), jnp.asarray(games), prior=0.0)
    np.testing.assert_allclose(found, expected - expected.mean(), atol=0.1)


def test_elo_of_a_circle_tells_nobody_apart():
    won = jnp.asarray([[0.0, 9, 0], [0, 0, 9], [9, 0, 0]])
    np.testing.assert_allclose(matches.elo(won, won + won.T), 0, atol=1e-3)


def test_other_environments_and_odd_numbers_are_refused():
    rows = ROCK[None]
    with pytest.raises(UserError, match="must be even and at least 2; it is 3"):
        matches.cross_play(game(), POLICY, rows, rows, key=KEY, games=3)
    with pytest.raises(UserError, match="'cartpole' is not a game for two players; mixture"):
        matches.mixture(envs.make("cartpole"), POLICY, rows, jnp.ones(1))
