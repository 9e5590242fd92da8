"""Measures in Kuhn poker of claims about self-play."""

from __future__ import annotations

import functools
import itertools

import jax.numpy as jnp
import numpy as np

from experiments.claims.games import _games, neupl, spiral
from jaxrl.exact import games

RNG = np.random.default_rng(0)


@functools.cache
def kuhn(fee: float = 0.0) -> games.Game:
    return games.enumerate_game(_games.RULES, _games.Fee(np.float32(fee)))


def ways(game: games.Game):
    """Yield each course of the game: its place in the list and its moves (place, action)."""
    for z, (places, actions) in enumerate(zip(game.places, game.actions, strict=True)):
        yield z, [(i, a) for i, a in zip(places, actions, strict=True) if i >= 0]


def test_the_variance_of_one_games_gradient_is_that_of_a_sum_over_all_games():
    game, baseline = kuhn(3.0), np.asarray([2.0, -1.0])
    table = RNG.dirichlet([1, 1], len(game.player))
    mean, square = np.zeros(table.shape), 0.0
    for z, moves in ways(game):
        gradient, chance = np.zeros(table.shape), game.chance[z]
        for place, action in moves:
            chance *= table[place, action]
            player = game.player[place]
            score = np.eye(2)[action] - table[place]
            gradient[place] += (game.payoff[z, player] - baseline[player]) * score
        mean, square = mean + chance * gradient, square + chance * (gradient**2).sum()
    found = spiral.variance(game, jnp.asarray(table), jnp.asarray(baseline))
    np.testing.assert_allclose(found, square - (mean**2).sum(), rtol=1e-5)


def test_a_fee_is_paid_and_exploits_nobody():
    table = jnp.asarray(RNG.dirichlet([1, 1], len(kuhn().player)))
    reaches = games.reach(kuhn(), table)
    gain = games.value(kuhn(3.0), reaches) - games.value(kuhn(), reaches)
    np.testing.assert_allclose(gain, [3, -3], rtol=1e-5)
    alike = [games.exploitability(kuhn(fee), reaches) for fee in (0.0, 3.0)]
    np.testing.assert_allclose(alike[0], alike[1], atol=1e-5)


def test_the_scale_of_closeness():
    game = kuhn()
    reach = np.ones((2, 64, len(game.chance)))  # each player's pure strategies
    for player in range(2):
        mine = np.flatnonzero(game.player == player).tolist()
        for s, choices in enumerate(itertools.product(range(2), repeat=len(mine))):
            for z, moves in ways(game):
                reach[player, s, z] = all(
                    choices[mine.index(i)] == a for i, a in moves if i in mine
                )
    gains = np.einsum("iz,jz,z->ij", *reach, game.chance * game.payoff[:, 0])
    # The best answers to the most exploitable players; no policy does worse.
    np.testing.assert_allclose((gains.max() - gains.min()) / 2, _games.MOST)
    even = (gains.mean(1).max() - gains.mean(0).min()) / 2
    np.testing.assert_allclose(even, _games.EVENLY)


def test_a_population_is_as_close_as_its_own_equilibrium():
    game = kuhn()
    bets = {0: [1 / 3, 0, 1], 1: [1 / 3, 0, 1], 2: [0, 1 / 3, 1], 3: [0, 2 / 3, 1]}
    seen = np.asarray(game.timesteps.observation)
    cards, moments = seen[:, :3].argmax(1), seen[:, 3:].argmax(1)
    bet = np.asarray([bets[m][c] for m, c in zip(moments, cards, strict=True)])
    best = np.stack([1 - bet, bet], -1)
    found = neupl.equilibrium(game, jnp.asarray(np.stack([game.uniform, best])))
    np.testing.assert_allclose(found, 1, atol=0.01)
    np.testing.assert_allclose(
        neupl.equilibrium(game, jnp.asarray(game.uniform)[None]), 0, atol=1e-5
    )
