"""Markov games: values and best responses against brute force over histories and policies."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.exact.markov_games import MarkovGame, best_response, nash_gap, values

STEPS, STATES, FIRST, SECOND = 2, 2, 2, 3
RNG = np.random.default_rng(0)
GAME = MarkovGame(
    jnp.asarray(RNG.dirichlet(np.ones(STATES), (STEPS, STATES, FIRST, SECOND))),
    jnp.asarray(RNG.normal(size=(2, STEPS, STATES, FIRST, SECOND))),
    jnp.array([0.3, 0.7]),
)
POLICIES = tuple(jnp.asarray(RNG.dirichlet(np.ones(n), (STEPS, STATES))) for n in (FIRST, SECOND))


def play(policies, player):
    """Return a player's expected return as a sum over all histories."""
    game, policies = jax.tree.map(np.asarray, (GAME, policies))
    total = 0.0
    states, joint = range(STATES), list(itertools.product(range(FIRST), range(SECOND)))
    for (s, x), (a, b), (c, d) in itertools.product(
        itertools.product(states, states), joint, joint
    ):
        chance = game.initial[s] * policies[0][0, s, a] * policies[1][0, s, b]
        chance *= game.transition[0, s, a, b, x] * policies[0][1, x, c] * policies[1][1, x, d]
        total += chance * (game.reward[player, 0, s, a, b] + game.reward[player, 1, x, c, d])
    return total


def deterministic(actions):
    """Return all deterministic policies of a player."""
    for chosen in itertools.product(range(actions), repeat=STEPS * STATES):
        yield jnp.eye(actions)[np.array(chosen).reshape(STEPS, STATES)]


def test_values_and_best_responses():
    found = values(GAME, POLICIES)
    np.testing.assert_allclose(found, [play(POLICIES, p) for p in range(2)], rtol=1e-5)
    best = [
        max(play((own, POLICIES[1]), 0) for own in deterministic(FIRST)),
        max(play((POLICIES[0], own), 1) for own in deterministic(SECOND)),
    ]
    np.testing.assert_allclose(
        [best_response(GAME, POLICIES, p) for p in range(2)], best, rtol=1e-5
    )
    np.testing.assert_allclose(nash_gap(GAME, POLICIES), np.sum(best) - found.sum(), rtol=1e-4)


def test_shapes_are_checked():
    with pytest.raises(UserError, match="A Markov game has rewards"):
        nash_gap(GAME._replace(reward=jnp.zeros((2, STEPS, STATES, FIRST, FIRST))), POLICIES)
