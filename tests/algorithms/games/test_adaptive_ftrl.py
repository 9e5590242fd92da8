"""FTRL from sampled games: estimates in expectation, rates by hand, and the gap that is left."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games import adaptive_ftrl as ftrl
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.exact import games, trees

ENV = envs.make("kuhn_poker")
FOREST = ftrl.forest_of(ENV)
PLAYER = FOREST.players[0]


def test_estimates_are_right_in_expectation_but_for_exploration():
    rng = np.random.default_rng(0)
    plans = [
        trees.plan(player, jnp.asarray(rng.dirichlet((1, 1), 6), jnp.float32))
        for player in FOREST.players
    ]
    loss = jnp.asarray((2 - FOREST.game.payoff) / 4, jnp.float32)
    chance = FOREST.game.chance * np.prod(
        [plan[player.last] for plan, player in zip(plans, FOREST.players, strict=True)], 0
    )
    histories = jnp.arange(len(chance))
    for p, player in enumerate(FOREST.players):
        exploration = jnp.asarray(rng.uniform(0, 1, player.sequences), jnp.float32)

        def estimate_of(z, p=p, player=player, exploration=exploration):
            over = ftrl.weights(player, plans[p], exploration, z)
            return ftrl.estimate(player, over, loss[z, p], z)

        mean = (chance[:, None] * jax.vmap(estimate_of)(histories)).sum(0)
        payoff = trees.gradient(FOREST, plans, p)
        # Losses are (2 - payoff) / 4; the reach of a sequence by the others weighs the 2.
        reach = np.zeros(player.sequences)
        others = FOREST.players[1 - p]
        weight = FOREST.game.chance * np.asarray(plans[1 - p])[others.last]
        np.add.at(reach, player.last, weight)
        exact = (2 * reach - np.asarray(payoff)) / 4
        np.testing.assert_allclose(mean, exact * plans[p] / (plans[p] + exploration), atol=1e-6)


def test_weights_are_those_of_the_moves_that_were_made():
    plan = trees.plan(PLAYER, jnp.full((6, 2), 0.5))
    history = int(np.flatnonzero((PLAYER.path < PLAYER.sequences).sum(1) == 2)[0])
    first, second = PLAYER.path[history]
    over = ftrl.weights(PLAYER, plan, jnp.full(13, 0.25), jnp.int32(history))
    expected = np.zeros(13)
    expected[[first, second]] = 1 / (0.5 + 0.25), 1 / (0.25 + 0.25)
    np.testing.assert_allclose(over, expected)


def test_rates_fall_with_visits_or_follow_the_tree():
    visits = jnp.zeros(13).at[3].set(6.0)  # the first action of the second set
    at_sets, at_sequences = ftrl.rates(PLAYER, "adaptive", visits)
    np.testing.assert_allclose(at_sets, [1, 4, 1, 1, 1, 1])
    np.testing.assert_allclose(at_sequences, np.ones(13) + 6 * (np.arange(13) == 3))
    at_sets, at_sequences = ftrl.rates(PLAYER, "structure", visits)
    np.testing.assert_allclose(at_sets, 1)
    np.testing.assert_allclose(at_sequences, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings, bound",
    [({"rate": 100.0}, 0.09), ({"balance": "structure", "rate": 0.02, "exploration": 0.005}, 0.09)],
)
def test_its_average_approaches_an_equilibrium(settings, bound):
    algorithm = ftrl.adaptive_ftrl(ENV, {"games": 8000, **settings})
    run = jax.jit(lambda run: train(algorithm, run, 2)[0])(start(algorithm, random.key(0)))
    table = algorithm.policy(run.state).state
    assert games.exploitability(FOREST.game, games.reach(FOREST.game, table)) < bound


@pytest.mark.parametrize(
    "name, settings, error",
    [
        ("tic_tac_toe", {}, "no game that can be enumerated"),
        ("goofspiel", {"players": 3, "cards": 3}, "not a zero-sum game for two players"),
        ("repeated_rock_paper_scissors", {"rounds": 3}, "must remember more than they observe"),
    ],
)
def test_other_games_are_refused(name, settings, error):
    with pytest.raises(UserError, match=error):
        ftrl.adaptive_ftrl(envs.make(name, **settings))
