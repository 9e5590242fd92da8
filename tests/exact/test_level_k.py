"""Level-k reasoning by hand, in the game of guessing a share of the average."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.exact import level_k as k


def test_the_response_counts_its_own_guess():
    """Four rivals at 50 and a share of 0.8: g = 0.8 (4 * 50 + g) / 5."""
    guess = float(k.guess_response(0.8, 5)(jnp.asarray(50.0)))
    np.testing.assert_allclose(guess, 0.8 * (4 * 50 + guess) / 5, rtol=1e-6)
    assert guess < 0.8 * 50


def test_reasoning_is_the_response_to_the_reasoning_of_a_level_below():
    history = jnp.asarray([[0.0, 0.0], [30.0, 50.0]])
    rule, respond = k.repeat_average, lambda rival: rival / 2 + 1
    found = [float(k.reason(rule, respond, history, level)) for level in range(4)]
    assert found == [40, 21, 11.5, 6.75]


def test_each_round_starts_from_the_last_one():
    share, levels = 0.5, jnp.asarray([1, 0, 0])
    play = jax.jit(lambda history: k.contest(history, share, levels, 1, 2))
    guesses = np.asarray(play(jnp.asarray([[30.0, 60.0, 90.0]])))
    respond = lambda average: 0.5 * 2 * average / 2.5
    np.testing.assert_allclose(guesses[0], [respond(60), 60, 60], rtol=1e-6)
    average = (respond(60) + 120) / 3
    np.testing.assert_allclose(guesses[1], [respond(average), average, average], rtol=1e-6)


def test_the_nearest_win_and_divide_the_prize():
    guesses = jnp.asarray([[10.0, 20.0, 60.0], [15.0, 15.0, 60.0], [0.0, 30.0, 0.0]])
    found = k.winners(guesses, 0.5)  # shares of the averages: 15, 15, 5
    np.testing.assert_allclose(found, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]])
