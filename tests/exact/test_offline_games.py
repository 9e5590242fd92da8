"""Offline Markov games: intervals against brute force over what the data allow, and selection."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.exact import offline_games
from jaxrl.exact.markov_games import MarkovGame, best_response, nash_gap, values
from jaxrl.exact.offline_games import Estimate

H, S, A, B = 2, 2, 2, 3
RNG = np.random.default_rng(0)
GAME = MarkovGame(
    jnp.asarray(RNG.dirichlet(np.ones(S), (H, S, A, B)), jnp.float32),
    jnp.asarray(RNG.uniform(size=(2, H, S, A, B)), jnp.float32),
    jnp.array([0.3, 0.7]),
)
KNOWN = Estimate(GAME, jnp.zeros((H, S, A, B)), 0.0, 1.0)
POLICIES = tuple(jnp.asarray(RNG.dirichlet(np.ones(n), (H, S)), jnp.float32) for n in (A, B))


def test_where_everything_is_known_bounds_are_returns_and_gaps():
    joint = offline_games.join(POLICIES)
    low, high = offline_games.return_bounds(KNOWN, joint)
    np.testing.assert_allclose(low, values(GAME, POLICIES), rtol=1e-5)
    np.testing.assert_allclose(high, low, rtol=1e-5)
    for player in range(2):
        best = best_response(GAME, POLICIES, player)
        found = offline_games.deviation_bound(KNOWN, joint, player)
        np.testing.assert_allclose(found, best, rtol=1e-5)
        # Independent players learn nothing from what is recommended to them.
        found = offline_games.deviation_bound(KNOWN, joint, player, correlated=True)
        np.testing.assert_allclose(found, best, rtol=1e-5)
    np.testing.assert_allclose(
        offline_games.gap_bound(KNOWN, joint), nash_gap(GAME, POLICIES), rtol=1e-4
    )


def test_a_told_player_gains_at_least_as_much_as_an_untold_one():
    """Brute force over all ways to leave a correlated policy of one step."""
    match = np.eye(A, B)
    payoff = 0.2 * RNG.uniform(size=(2, 1, S, A, B)) + match
    game = MarkovGame(GAME.transition[:1], jnp.asarray(payoff, jnp.float32), GAME.initial)
    one = Estimate(game, jnp.zeros((1, S, A, B)), 0.0, 2.0)
    joint = RNG.dirichlet((0.3 + 3 * match).ravel(), (1, S)).reshape(1, S, A, B)
    initial, reward = np.asarray(GAME.initial), payoff[:, 0]
    untold = told = 0.0
    for s in range(S):
        untold += initial[s] * max(joint[0, s].sum(0) @ reward[0, s, c] for c in range(A))
        told += initial[s] * max(
            sum(joint[0, s, a] @ reward[0, s, c] for a, c in enumerate(ways))
            for ways in itertools.product(range(A), repeat=A)
        )
    joint = jnp.asarray(joint)
    np.testing.assert_allclose(offline_games.deviation_bound(one, joint, 0), untold, rtol=1e-5)
    found = offline_games.deviation_bound(one, joint, 0, correlated=True)
    np.testing.assert_allclose(found, told, rtol=1e-5)
    assert told > untold + 1e-3


def test_whatever_the_data_leave_open_lies_between_the_bounds():
    seen = RNG.random((H, S, A, B)) < 0.6
    estimate = KNOWN._replace(radius=jnp.where(seen, 0.0, jnp.inf))
    joint = offline_games.join(POLICIES)
    low, high = offline_games.return_bounds(estimate, joint)
    # All games that agree with the data, with rewards 0 or 1 and one successor elsewhere.
    ends, allowed = [], jax.jit(lambda game: values(game, POLICIES))
    for _ in range(300):
        goes = np.eye(S)[RNG.integers(0, S, (H, S, A, B))]
        reward = np.where(seen, GAME.reward, RNG.integers(0, 2))
        transition = np.where(seen[..., None], GAME.transition, goes)
        game = MarkovGame(jnp.asarray(transition), jnp.asarray(reward), GAME.initial)
        ends.append(allowed(game))
    ends = np.array(ends)
    assert (low <= ends + 1e-5).all() and (ends <= high + 1e-5).all()
    assert (low > 0).all() and (high < H).all()
    nothing = KNOWN._replace(radius=jnp.full((H, S, A, B), jnp.inf))
    np.testing.assert_allclose(offline_games.return_bounds(nothing, joint), [[0, 0], [H, H]])


def test_counts_become_radii_that_hold():
    rng = np.random.default_rng(1)
    number = rng.integers(0, 60, (H, S, A, B))
    number[0, 0, 0, 0] = 0
    counts = np.array(
        [
            rng.multinomial(n, p)
            for n, p in zip(
                number.ravel(), np.asarray(GAME.transition, np.float64).reshape(-1, S), strict=True
            )
        ]
    ).reshape(H, S, A, B, S)
    found = offline_games.from_counts(jnp.asarray(counts), GAME.reward, GAME.initial, failure=0.01)
    radius = np.sqrt(2 * np.log(2 * number.size / 0.01) / np.maximum(number, 1))
    radius = np.minimum(radius, 2) / 2 * np.array([1, 0])[:, None, None, None]
    np.testing.assert_allclose(found.radius, np.where(number, radius, np.inf), rtol=1e-5)
    seen = number > 0
    np.testing.assert_allclose(
        found.game.transition[seen], (counts / np.maximum(number, 1)[..., None])[seen], rtol=1e-5
    )
    np.testing.assert_allclose(found.game.reward, np.where(seen, GAME.reward, 0.5), rtol=1e-6)
    joint = offline_games.join(POLICIES)
    low, high = offline_games.return_bounds(found, joint)
    own = values(GAME, POLICIES)
    assert (low <= own).all() and (own <= high).all()
    assert offline_games.gap_bound(found, joint) >= nash_gap(GAME, POLICIES)
    with pytest.raises(UserError, match=r"failure is 1\.0"):
        offline_games.from_counts(jnp.asarray(counts), GAME.reward, GAME.initial, failure=1.0)


def test_the_policy_with_the_least_bound_is_chosen():
    joints = jnp.asarray(RNG.dirichlet(np.ones(A * B), (20, H, S)).reshape(20, H, S, A, B))
    chosen, bounds = jax.jit(offline_games.select)(KNOWN, joints)
    each = [offline_games.gap_bound(KNOWN, joint) for joint in joints]
    np.testing.assert_allclose(bounds, each, rtol=1e-4)
    assert chosen == np.argmin(each)
