"""Trees of information sets: known gaps of games for two and three, values, and what is refused."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.games import goofspiel, kuhn_poker, leduc_poker, liars_dice
from jaxrl.exact import games, trees

SHARED = dataclasses.replace(  # three players, and payoffs whose sum is not 0
    goofspiel.make_rules(3, 3, "descending"), payoff=lambda state, params: goofspiel.points(state)
)
RULES = {
    "kuhn": kuhn_poker.RULES,
    "leduc": leduc_poker.RULES,
    "liars dice": liars_dice.make_rules(3, 1),
    "goofspiel": goofspiel.make_rules(3, 2, "random"),
    "three players": goofspiel.make_rules(3, 3, "descending"),
    "points of three": SHARED,
}


@functools.cache
def forest(name: str) -> trees.Forest:
    return trees.grow(games.enumerate_game(RULES[name]))


@functools.cache
def measures(name: str):
    """Compile table [I, A] -> NashConv by trees and by histories, and values by both."""
    f = forest(name)

    def measure(table):
        plans = [trees.plan(p, t) for p, t in zip(f.players, trees.split(f, table), strict=True)]
        reaches = games.reach(f.game, table)
        return {
            "gap": trees.nash_conv(f, trees.split(f, table)),
            "gap by histories": games.exploitability(f.game, reaches) * f.game.num_players,
            "value": trees.values(f, plans),
            "value by histories": games.value(f.game, reaches),
        }

    return jax.jit(measure)


# NashConv of uniform play as OpenSpiel 2.0.2 computes it, and the number of information sets.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, gap, sets",
    [
        ("kuhn", 11 / 12, 12),
        ("leduc", 4.7472222222, 288),  # OpenSpiel tells suits apart: 936
        ("liars dice", 1.1111111111, 192),
        ("goofspiel", 1.3333333333, 90),
        ("three players", 0.9166666667, 30),
        ("points of three", 1.3333333333, 30),
    ],
)
def test_the_gap_of_uniform_play_is_openspiels(name, gap, sets):
    game = forest(name).game
    assert len(game.player) == sets
    found = measures(name)(game.uniform)
    np.testing.assert_allclose(found["gap"], gap, rtol=1e-5)
    np.testing.assert_allclose(found["gap by histories"], gap, rtol=1e-5)
    table = np.random.default_rng(0).dirichlet(np.ones(game.legal.shape[1]), sets) * game.legal
    found = measures(name)(table / table.sum(1, keepdims=True))
    np.testing.assert_allclose(found["gap"], found["gap by histories"], rtol=1e-4)
    np.testing.assert_allclose(found["value"], found["value by histories"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kuhn", "leduc"])
def test_whoever_always_folds_loses_the_ante_to_each(name):
    legal = forest(name).game.legal
    table = np.eye(legal.shape[1])[legal.argmax(1)]  # the first legal action: fold, or check
    np.testing.assert_allclose(measures(name)(table)["gap"], 2, atol=1e-5)


def sequence_form_value(name: str) -> float:
    """Solve the zero-sum game's linear program over the first player's plans."""
    f = forest(name)
    one, two = f.players
    payoff = np.zeros((one.sequences, two.sequences))
    np.add.at(payoff, (one.last, two.last), f.game.chance * f.game.payoff[:, 0])

    def constraints(player):
        sets, actions = player.legal.shape
        flow, right = np.zeros((1 + sets, player.sequences)), np.eye(1 + sets)[0]
        flow[0, 0] = 1
        for i in range(sets):
            flow[1 + i, player.parent[i]] -= 1
            flow[1 + i, 1 + i * actions + np.flatnonzero(player.legal[i])] = 1
        return flow, right

    (flow, right), (other_flow, other_right) = constraints(one), constraints(two)
    # max q'v subject to flow x = right and other_flow' v <= payoff' x, x >= 0
    result = scipy.optimize.linprog(
        np.concatenate([np.zeros(one.sequences), -other_right]),
        A_ub=np.concatenate([-payoff.T, other_flow.T], 1),
        b_ub=np.zeros(two.sequences),
        A_eq=np.concatenate([flow, np.zeros((len(flow), len(other_right)))], 1),
        b_eq=right,
        bounds=[(0, None)] * one.sequences + [(None, None)] * len(other_right),
    )
    return -result.fun


def test_the_linear_program_of_kuhn_poker_has_its_value():
    np.testing.assert_allclose(sequence_form_value("kuhn"), -1 / 18, atol=1e-9)


def test_plans_and_tables_turn_into_each_other():
    for player in forest("kuhn").players:
        table = np.random.default_rng(1).dirichlet((1, 1), 6).astype(np.float32)
        plan = trees.plan(player, jnp.asarray(table))
        np.testing.assert_allclose(trees.behavior(player, plan), table, rtol=1e-5)
    nowhere = jnp.zeros(player.sequences)
    np.testing.assert_allclose(trees.behavior(player, nowhere), player.uniform)


def test_tables_of_players_and_of_the_game_turn_into_each_other():
    f = forest("leduc")
    table = np.random.default_rng(2).uniform(size=f.game.legal.shape).astype(np.float32)
    np.testing.assert_array_equal(trees.join(f, trees.split(f, jnp.asarray(table))), table)


def test_long_sums_are_not_padded(monkeypatch):
    f = forest("kuhn")
    plans = [trees.plan(p, t) for p, t in zip(f.players, f.uniform, strict=True)]
    padded = [trees.gradient(f, plans, p) for p in (0, 1)]
    monkeypatch.setattr(trees, "WASTE", 0)
    other = trees.grow(f.game)
    assert f.players[0].ends is not None and other.players[0].ends is None
    for p in (0, 1):
        np.testing.assert_allclose(trees.gradient(other, plans, p), padded[p], atol=1e-6)


def test_a_player_who_forgets_is_refused():
    def observe(state):  # the first player no longer knows its card after a pass
        seen = kuhn_poker.RULES.observe(state)
        return jnp.where(jnp.asarray(state.place) == kuhn_poker.RAISED, 0.0, seen)

    rules = dataclasses.replace(kuhn_poker.RULES, observe=observe)
    with pytest.raises(UserError, match="forgets what it did"):
        trees.grow(games.enumerate_game(rules))


def test_states_with_different_legal_actions_must_look_different():
    rules = dataclasses.replace(leduc_poker.RULES, observe=lambda state: jnp.zeros(1))
    with pytest.raises(UserError, match="observe must tell them apart"):
        games.enumerate_game(rules)


def test_a_policy_plays_by_its_table():
    env = envs.make("leduc_poker")
    game = forest("leduc").game
    table = np.random.default_rng(3).dirichlet((1, 1, 1), 288) * game.legal
    table = (table / table.sum(1, keepdims=True)).astype(np.float32)
    policy = trees.policy(game, jnp.asarray(table))
    np.testing.assert_allclose(games.behavior(game, policy), table, rtol=1e-4, atol=1e-7)
    assert env.rules is leduc_poker.RULES
