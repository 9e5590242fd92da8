"""Values, best responses and exploitability against closed forms and brute force."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.envs.games import kuhn_poker, matrix_game
from jaxrl.envs.games.opponents import against_random
from jaxrl.exact import games


@functools.cache
def kuhn() -> games.Game:
    return games.enumerate_game(kuhn_poker.RULES)


@functools.cache
def measures():
    """Compile table [12, 2] -> values, exploitability, best responses and their values."""

    def measure(table):
        reaches = games.reach(kuhn(), table)
        best = [games.best_response(kuhn(), reaches, player) for player in (0, 1)]
        return {
            "value": games.value(kuhn(), reaches),
            "exploitability": games.exploitability(kuhn(), reaches),
            "best": jnp.stack([value for value, _ in best]),
            "answers": jnp.stack([table for _, table in best]),
        }

    return jax.jit(measure)


def equilibrium(alpha: float) -> np.ndarray:
    """Kuhn's (1950) family of equilibria; alpha: how often the first player bets with a jack."""
    bets = {
        0: (alpha, 0, 3 * alpha),  # to open
        3: (0, alpha + 1 / 3, 1),  # to call after having passed
        1: (1 / 3, 0, 1),  # the second player, after a pass
        2: (0, 1 / 3, 1),  # to call a bet
    }
    seen = np.asarray(kuhn().timesteps.observation)
    bet = np.asarray([bets[int(o[3:].argmax())][int(o[:3].argmax())] for o in seen])
    return np.stack([1 - bet, bet], 1)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_kuhns_equilibria_have_his_value_and_cannot_be_exploited(alpha):
    found = measures()(equilibrium(alpha))
    np.testing.assert_allclose(found["value"], [-1 / 18, 1 / 18], atol=1e-6)
    np.testing.assert_allclose(found["exploitability"], 0, atol=1e-6)


def test_beyond_the_family_it_can_be_exploited():
    table = equilibrium(1 / 3)
    jack = (np.asarray(kuhn().timesteps.observation)[:, [0, 3]] == 1).all(1)
    table[jack] = [0.4, 0.6]  # opens with the jack too often
    assert measures()(table)["exploitability"] > 0.02


def test_uniform_play_has_its_known_value():
    found = measures()(kuhn().uniform)
    np.testing.assert_allclose(found["value"], [1 / 8, -1 / 8], atol=1e-6)
    np.testing.assert_allclose(found["exploitability"], 11 / 24, atol=1e-6)  # NashConv 11/12


def _walk(table: np.ndarray, cards, player=0, history=()) -> float:
    """Walk through the game to compute the first player's value, without code of the package."""
    ended = {(0, 0): 1, (1, 1): 2, (0, 1, 1): 2}
    if history in ended:
        return ended[history] * (1 if cards[0] > cards[1] else -1)
    if history == (1, 0):
        return 1.0
    if history == (0, 1, 0):
        return -1.0
    place = {(): 0, (0,): 1, (1,): 2, (0, 1): 3}[history]
    seen = np.asarray(kuhn().timesteps.observation)
    row = np.flatnonzero((seen[:, cards[player]] == 1) & (seen[:, 3 + place] == 1))[0]
    return sum(table[row, a] * _walk(table, cards, 1 - player, (*history, a)) for a in (0, 1))


def _brute(table: np.ndarray) -> float:
    return float(np.mean([_walk(table, c) for c in itertools.permutations(range(3), 2)]))


def test_best_responses_are_the_best_of_all_pure_strategies():
    table = np.random.default_rng(0).dirichlet((1, 1), 12)
    found = jax.device_get(measures()(table))
    np.testing.assert_allclose(found["value"][0], _brute(table), atol=1e-6)
    for player, sign in ((0, 1), (1, -1)):
        mine = np.flatnonzero(kuhn().player == player)
        best = -np.inf
        for choice in itertools.product((0, 1), repeat=6):
            pure = table.copy()
            pure[mine] = np.eye(2)[list(choice)]
            best = max(best, sign * _brute(pure))
        np.testing.assert_allclose(found["best"][player], best, atol=1e-6)
        answer = table.copy()
        answer[mine] = found["answers"][player][mine]
        np.testing.assert_allclose(sign * _brute(answer), best, atol=1e-6)


def test_a_mixture_draws_once_a_game():
    tables = np.random.default_rng(1).dirichlet((1, 1), (2, 12))
    both = jax.jit(lambda x, w: games.mixture(kuhn(), x, w))(tables, np.asarray([0.3, 0.7]))
    expected = 0.0
    for (i, p), (j, q) in itertools.product(enumerate((0.3, 0.7)), repeat=2):
        pair = np.where((kuhn().player == 0)[:, None], tables[i], tables[j])
        expected += p * q * _brute(pair)
    value = (kuhn().chance * np.prod(both, 0)) @ kuhn().payoff
    np.testing.assert_allclose(value[0], expected, atol=1e-6)


def test_runs_in_a_game_that_can_be_enumerated_report_exploitability():
    """The metric exists while a program is traced, but not for other games or wrapped ones."""
    play = lambda table: lambda game: games.reach(game, table)
    measure = jax.jit(
        lambda table: games.exploitability_metrics(kuhn_poker.kuhn_poker(), play(table))
    )
    assert measure(equilibrium(0.2)).keys() == games.SCORES.keys()
    np.testing.assert_allclose(measure(equilibrium(0.2))["exploitability"], 0, atol=1e-6)
    np.testing.assert_allclose(measure(kuhn().uniform)["exploitability"], 11 / 24, rtol=1e-5)
    for env in (envs.make("tic_tac_toe"), against_random("kuhn_poker")):
        assert games.exploitability_metrics(env, play(kuhn().uniform)) == {}


@pytest.mark.parametrize("win, nash", [(1, (1 / 3, 1 / 3, 1 / 3)), (2, (0.25, 0.5, 0.25))])
def test_the_equilibrium_of_matrix_games(win, nash):
    payoff = jnp.asarray([[0, -1, win], [1, 0, -1], [-win, 1, 0]], jnp.float32)
    solve = jax.jit(games.matrix_nash, static_argnames="iterations")
    np.testing.assert_allclose(solve(payoff, jnp.ones(3, bool)), nash, atol=0.01)
    pure = solve(payoff, jnp.asarray([True, True, False]))
    np.testing.assert_allclose(pure, [0, 1, 0], atol=0.01)  # without scissors paper always wins


def test_rock_paper_scissors_is_exploited_as_its_matrix_says():
    params = matrix_game.Params(matrix_game.ROCK_PAPER_SCISSORS)
    game = games.enumerate_game(matrix_game.RULES, params)
    measure = jax.jit(lambda table: games.exploitability(game, games.reach(game, table)))
    np.testing.assert_allclose(measure(np.asarray([[1.0, 0, 0]] * 2)), 1, atol=1e-6)
    np.testing.assert_allclose(measure(game.uniform), 0, atol=1e-6)
